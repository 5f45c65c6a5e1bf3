// Proves that files are opened only by bare name inside the folder (or its Hugging Face cache), whatever symlinks and
// special files a download holds, and that opening never hangs.
#include "penstock/checkpoint/model_folder.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <iterator>
#include <string>

#include "penstock/base/status.h"
#include "test_files.h"

namespace penstock {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string ContentOf(const OpenedFile& file) {
  std::string content(file.size_bytes, '\0');
  EXPECT_TRUE(PreadFully(file.fd.get(), std::as_writable_bytes(std::span(content)), 0, file.path).ok());
  return content;
}

// Returns the content of file `name` in the folder `path`, or the error of opening it.
std::string TryOpen(const std::string& path, std::string_view name) {
  const auto folder = ModelFolder::Open(path);
  if (!folder.ok()) return Message(folder.status());
  const auto file = folder->OpenFile(name);
  if (file.ok()) return "content " + ContentOf(*file);
  EXPECT_EQ(FaultOf(file.status()), Fault::kModel) << Message(file.status());
  return Message(file.status());
}

TEST(ModelFolder, OpensFiles) {
  const TempFolder temp;
  temp.Write("config.json", "{}");
  const auto folder = ModelFolder::Open(temp.path() + "//");
  ASSERT_TRUE(folder.ok());
  EXPECT_EQ(folder->path(), temp.path());
  EXPECT_TRUE(folder->Has("config.json"));
  EXPECT_FALSE(folder->Has("tokenizer.json"));
  EXPECT_FALSE(folder->Has("."));
  EXPECT_FALSE(folder->Has("../" + std::filesystem::path(temp.path()).filename().string()));
  const auto file = folder->OpenFile("config.json");
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->size_bytes, 2u);
  EXPECT_EQ(file->path, temp.path() + "/config.json");
  EXPECT_EQ(ContentOf(*file), "{}");
  EXPECT_NE(::fcntl(file->fd.get(), F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_EQ(*folder->Read("config.json", 2), "{}");
}

TEST(ModelFolder, BadPaths) {
  const TempFolder temp;
  const std::string file = temp.Write("x", "");
  const auto error = [](const std::string& path, Fault fault) {
    const auto folder = ModelFolder::Open(path);
    EXPECT_FALSE(folder.ok()) << path;
    EXPECT_EQ(FaultOf(folder.status()), fault) << path;
    return Message(folder.status());
  };
  EXPECT_THAT(error("", Fault::kUsage), HasSubstr("path is empty"));
  EXPECT_THAT(error(std::string(4096, 'a'), Fault::kUsage), HasSubstr("4096 bytes"));
  EXPECT_THAT(error(std::string(300, 'a'), Fault::kUsage), HasSubstr("too long"));
  EXPECT_THAT(error(std::string("a\0b", 3), Fault::kUsage), HasSubstr("NUL"));
  EXPECT_THAT(error(temp.path() + "/none", Fault::kModel), HasSubstr("No such file or directory"));
  EXPECT_THAT(error(file, Fault::kModel),
              HasSubstr("expected the folder that holds config.json, or a GGUF file, found a regular file"));
  EXPECT_THAT(error("/dev/null", Fault::kModel), HasSubstr("found a device"));
}

TEST(ModelFolder, OddButLegalPaths) {
  const TempFolder temp;
  for (const std::string name : {"with space", "with\nnewline", "caf\xe9 not utf-8", "-dash", "models--looks--like"}) {
    temp.Write(name + "/f", "x");
    EXPECT_EQ(TryOpen(temp.path() + "/" + name, "f"), "content x") << name;
    EXPECT_THAT(TryOpen(temp.path() + "/" + name, "g"), HasSubstr("has no file 'g'"));
    EXPECT_EQ(TryOpen(temp.path() + "/" + name, "g").find('\n'), std::string::npos);
  }
  std::string deep;
  for (int i = 0; i < 30; ++i) deep += std::string(100, 'd') + "/";
  temp.Write(deep + "f", "x");
  EXPECT_EQ(TryOpen(temp.path() + "/" + deep, "f"), "content x");
}

TEST(ModelFolder, RefusesUnsafeNames) {
  const TempFolder temp;
  temp.Write("model/a", "inside");
  temp.Write("model/sub/b", "inside");
  temp.Write("secret", "outside");
  for (const std::string& name :
       {std::string(), std::string("."), std::string(".."), std::string("../secret"), std::string("/etc/passwd"),
        std::string("sub/b"), std::string("sub/../a"), std::string("./a"), std::string("a/"), std::string("..\\secret"),
        std::string("C:\\x"), std::string("c:a"), std::string("a\0b", 3), std::string("a\0", 2),
        std::string(256, 'n')}) {
    EXPECT_FALSE(IsSafeFileName(name)) << name;
    EXPECT_THAT(TryOpen(temp.path() + "/model", name), HasSubstr("unsafe file name")) << name;
  }
  for (const std::string name : {"a", "..a", "a..b", ".hidden", "1:2", "model-00001-of-00002.safetensors"}) {
    EXPECT_TRUE(IsSafeFileName(name)) << name;
  }
}

TEST(ModelFolder, FollowsSymlinksThatStayInside) {
  const TempFolder temp;
  temp.Write("real/sub/data", "x");
  temp.Link("real/link", "sub/data");
  temp.Link("real/chain", "link");
  temp.Link("alias", "real");
  EXPECT_EQ(TryOpen(temp.path() + "/real", "link"), "content x");
  EXPECT_EQ(TryOpen(temp.path() + "/alias", "chain"), "content x");
}

TEST(ModelFolder, RefusesSymlinksOut) {
  const TempFolder temp;
  temp.Write("secret", "outside");
  temp.Write("model2/x", "outside");  // shares a prefix with the folder's name
  temp.Write("model/x", "inside");
  temp.Link("model/up", "../secret");
  temp.Link("model/absolute", "/etc/passwd");
  temp.Link("model/sibling", "../model2/x");
  temp.Link("model/hop", "up");
  temp.Link("model/parent", "..");
  temp.Link("model/self", ".");
  for (const std::string name : {"up", "absolute", "sibling", "hop", "parent", "self"}) {
    EXPECT_THAT(TryOpen(temp.path() + "/model", name), HasSubstr("leads out of the model folder")) << name;
  }
  temp.Link("model/dangling", "gone");
  EXPECT_THAT(TryOpen(temp.path() + "/model", "dangling"), HasSubstr("target is missing"));
  temp.Link("model/circle", "circle");
  EXPECT_THAT(TryOpen(temp.path() + "/model", "circle"), HasSubstr("circle"));
  temp.Link("model/through", "x/y");
  EXPECT_THAT(TryOpen(temp.path() + "/model", "through"), HasSubstr("cannot open"));
}

TEST(ModelFolder, RefusesWhatIsNoRegularFile) {
  const TempFolder temp;
  temp.Write("folder/x", "");
  EXPECT_THAT(TryOpen(temp.path(), "folder"), HasSubstr("expected a regular file, found a folder"));
  ASSERT_EQ(::mkfifo((temp.path() + "/fifo").c_str(), 0600), 0);
  EXPECT_THAT(TryOpen(temp.path(), "fifo"), HasSubstr("expected a regular file, found a FIFO"));
  const UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const std::string path = temp.path() + "/socket";
  ASSERT_LT(path.size(), sizeof(address.sun_path));
  path.copy(address.sun_path, path.size());
  ASSERT_EQ(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_THAT(TryOpen(temp.path(), "socket"), HasSubstr("expected a regular file, found a socket"));
  EXPECT_THAT(TryOpen("/dev", "null"), HasSubstr("expected a regular file, found a device"));
}

TEST(ModelFolder, TakesHuggingFaceCaches) {
  const TempFolder temp;
  const std::string repository = "hub/models--org--name";
  const std::string snapshot = repository + "/snapshots/0123abcd";
  temp.Write(repository + "/blobs/hash1", "own blob");
  temp.Link(snapshot + "/config.json", "../../blobs/hash1");
  temp.Write("hub/blobs/hash2", "shared blob");
  temp.Link(snapshot + "/weights", "../../../blobs/hash2");
  temp.Write(repository + "/blobs/hash3", "deep blob");
  temp.Link(snapshot + "/sub/x", "../../../blobs/hash3");
  EXPECT_EQ(TryOpen(temp.path() + "/" + snapshot, "config.json"), "content own blob");
  EXPECT_EQ(TryOpen(temp.path() + "/" + snapshot, "weights"), "content shared blob");
  EXPECT_EQ(TryOpen(temp.path() + "/" + snapshot + "/sub", "x"), "content deep blob");

  temp.Write("hub/models--org--other/blobs/hash", "another model's");
  temp.Link(snapshot + "/other", "../../../models--org--other/blobs/hash");
  temp.Write("hub/token", "secret");
  temp.Link(snapshot + "/token", "../../../token");
  temp.Write("hub/blobs-not/x", "x");
  temp.Link(snapshot + "/prefix", "../../../blobs-not/x");
  for (const std::string name : {"other", "token", "prefix"}) {
    EXPECT_THAT(TryOpen(temp.path() + "/" + snapshot, name), HasSubstr("leads out of the model folder")) << name;
  }
  // A folder of the same shape under another name is not a cache.
  temp.Write("hub/datasets--x/blobs/hash", "x");
  temp.Link("hub/datasets--x/snapshots/1/config.json", "../../blobs/hash");
  EXPECT_THAT(TryOpen(temp.path() + "/hub/datasets--x/snapshots/1", "config.json"), HasSubstr("leads out"));
}

TEST(ModelFolder, BlobsThatAreSymlinksAreCheckedToo) {
  const TempFolder temp;
  temp.Write("secret", "x");
  temp.Link("hub/models--a--b/blobs/hash", "../../../secret");
  temp.Link("hub/models--a--b/snapshots/1/config.json", "../../blobs/hash");
  EXPECT_THAT(TryOpen(temp.path() + "/hub/models--a--b/snapshots/1", "config.json"), HasSubstr("leads out"));
}

TEST(ModelFolder, ReadIsBounded) {
  const TempFolder temp;
  temp.Write("x", "12345");
  const auto folder = ModelFolder::Open(temp.path());
  ASSERT_TRUE(folder.ok());
  EXPECT_EQ(*folder->Read("x", 5), "12345");
  EXPECT_THAT(Message(folder->Read("x", 4).status()), HasSubstr("more than the limit of 4 B"));
  // A sparse file claims any size; it is refused before memory is taken.
  std::filesystem::resize_file(temp.Write("huge", ""), 1ull << 40);
  EXPECT_THAT(Message(folder->Read("huge", 1 << 20).status()), HasSubstr("1.00 TiB"));
}

TEST(ModelFolder, UnreadableFilesAreIoErrors) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may read everything";
  const TempFolder temp;
  ASSERT_EQ(::chmod(temp.Write("x", "1").c_str(), 0), 0);
  const auto folder = ModelFolder::Open(temp.path());
  ASSERT_TRUE(folder.ok());
  EXPECT_EQ(FaultOf(folder->OpenFile("x").status()), Fault::kIo);
}

// Makes openat2 fail with `error_number` for this process, as in old kernels (ENOSYS) and some sandboxes (EPERM).
bool ForbidOpenat2(int error_number) {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat2, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<uint32_t>(error_number)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog program = {.len = std::size(filter), .filter = filter};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST(ModelFolder, WorksWithoutOpenat2) {
  const TempFolder temp;
  temp.Write("model/x", "1");
  temp.Write("secret", "2");
  temp.Link("model/in", "x");
  temp.Link("model/out", "../secret");
  ASSERT_EQ(::mkfifo((temp.path() + "/model/fifo").c_str(), 0600), 0);
  for (const int error_number : {ENOSYS, EPERM}) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      if (!ForbidOpenat2(error_number)) ::_exit(77);
      const std::string path = temp.path() + "/model";
      const bool right = TryOpen(path, "x") == "content 1" && TryOpen(path, "in") == "content 1" &&
                         TryOpen(path, "out").find("leads out") != std::string::npos &&
                         TryOpen(path, "fifo").find("found a FIFO") != std::string::npos;
      ::_exit(right ? 0 : 1);
    }
    int wait_status = 0;
    ASSERT_EQ(::waitpid(child, &wait_status, 0), child);
    ASSERT_TRUE(WIFEXITED(wait_status));
    if (WEXITSTATUS(wait_status) == 77) GTEST_SKIP() << "this machine forbids seccomp filters";
    EXPECT_EQ(WEXITSTATUS(wait_status), 0) << error_number;
  }
}

TEST(ModelFolder, ListIsSorted) {
  const TempFolder temp;
  temp.Write("b", "");
  temp.Write("a", "");
  temp.Write("c/d", "");
  temp.Link(".e", "gone");
  const auto folder = ModelFolder::Open(temp.path());
  ASSERT_TRUE(folder.ok());
  EXPECT_THAT(folder->List(), ElementsAre(".e", "a", "b", "c"));
}

}  // namespace
}  // namespace penstock
