// Proves that files and batches are there again when a store is opened again, and that only one server has a store.
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "penstock/server/batches/batch_store.h"

namespace penstock::server {
namespace {

using Kind = BatchStore::Kind;

class BatchStoreTest : public testing::Test {
 protected:
  BatchStoreTest() { std::filesystem::remove_all(folder_); }
  ~BatchStoreTest() override { std::filesystem::remove_all(folder_); }

  static json::object AddFile(BatchStore& store, const std::string& content) {
    const std::string path = store.UploadPath();
    std::ofstream(path) << content;
    return *store.AddFile(path, BatchStore::NewId(Kind::kFile), "in.jsonl", "batch");
  }

  const std::string folder_ = std::filesystem::temp_directory_path() / ("store_" + std::to_string(::getpid()));
};

TEST_F(BatchStoreTest, ObjectsSurvive) {
  std::string file_id;
  {
    const auto store = *BatchStore::Open(folder_);
    const json::object file = AddFile(*store, "abc");
    file_id = TextField(file, "id");
    EXPECT_EQ(IntegerField(file, "bytes"), 3);
    ASSERT_TRUE(store->Put(Kind::kBatch, {{"id", "batch_0123"}, {"created_at", 1}}).ok());
    ASSERT_TRUE(store->Put(Kind::kBatch, {{"id", "batch_0456"}, {"created_at", 2}}).ok());
    EXPECT_FALSE(BatchStore::Open(folder_).ok());
    std::ofstream(store->UploadPath()) << "left by a kill";
    std::ofstream(folder_ + "/batches/batch_0789.json") << "{torn";
  }
  const auto store = *BatchStore::Open(folder_);
  EXPECT_TRUE(std::filesystem::exists(store->FilePath(file_id)));
  EXPECT_EQ(store->List(Kind::kFile).size(), 1);
  const std::vector<json::object> batches = store->List(Kind::kBatch);
  ASSERT_EQ(batches.size(), 2);
  EXPECT_EQ(TextField(batches[0], "id"), "batch_0456");
  for (const auto& entry : std::filesystem::directory_iterator(folder_ + "/files")) {
    EXPECT_FALSE(entry.path().filename().string().starts_with(".upload-"));
  }
}

TEST_F(BatchStoreTest, UnknownIdsAreNotFoundWhateverTheirBytes) {
  const auto store = *BatchStore::Open(folder_);
  const std::string id = TextField(AddFile(*store, ""), "id");
  for (const std::string& bad : {std::string("../lock"), std::string("file-"), id + ".json", std::string("\0", 1)}) {
    EXPECT_FALSE(store->Find(Kind::kFile, bad).has_value());
    EXPECT_FALSE(store->DeleteFile(bad).ok());
  }
  EXPECT_TRUE(store->DeleteFile(id).ok());
  EXPECT_FALSE(store->Find(Kind::kFile, id).has_value());
  EXPECT_FALSE(std::filesystem::exists(store->FilePath(id)));
}

}  // namespace
}  // namespace penstock::server
