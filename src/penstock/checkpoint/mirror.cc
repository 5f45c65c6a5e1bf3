#include "penstock/checkpoint/mirror.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>

#include <sys/stat.h>
#include <xxhash.h>

#include "penstock/base/bytes.h"
#include "penstock/base/checked.h"
#include "penstock/base/json.h"
#include "penstock/base/logging.h"
#include "penstock/base/status.h"
#include "penstock/base/text.h"
#include "penstock/checkpoint/checkpoint.h"
#include "penstock/checkpoint/packed_index.h"

namespace penstock {
namespace {

constexpr uint64_t kMirrorVersion = 1;
constexpr char kVersionField[] = "penstock_mirror";
constexpr size_t kMaxSamples = 256;  // tensors of which a page is compared
constexpr uint64_t kChunkBytes = 64 * kKiB;

uint64_t EndOf(const FileExtent& extent) { return extent.offset_bytes + extent.size_bytes; }

uint64_t DigestOf(const MirrorExtents& files) {
  std::string text;
  for (const auto& [name, extents] : files) {
    text += fmt::format("{}:", name);
    for (const FileExtent& extent : extents) text += fmt::format(" {}+{}", extent.offset_bytes, extent.size_bytes);
    text += '\n';
  }
  return XXH3_64bits(text.data(), text.size());
}

// Returns whether both files have the same bytes there; an error when one cannot be read.
absl::StatusOr<bool> AreEqual(const OpenedFile& file, const OpenedFile& copy, const FileExtent& extent) {
  std::vector<std::byte> expected(kChunkBytes), found(kChunkBytes);
  for (uint64_t done = 0; done < extent.size_bytes; done += kChunkBytes) {
    const uint64_t size = std::min(kChunkBytes, extent.size_bytes - done), at = extent.offset_bytes + done;
    PENSTOCK_RETURN_IF_ERROR(PreadFully(file.fd.get(), {expected.data(), size}, at, file.path));
    PENSTOCK_RETURN_IF_ERROR(PreadFully(copy.fd.get(), {found.data(), size}, at, copy.path));
    if (std::memcmp(expected.data(), found.data(), size) != 0) return false;
  }
  return true;
}

std::optional<uint64_t> UnsignedIn(const json::value& value) {
  if (value.is_uint64()) return value.get_uint64();
  if (value.is_int64() && value.get_int64() >= 0) return static_cast<uint64_t>(value.get_int64());
  return std::nullopt;
}

absl::StatusOr<std::vector<FileExtent>> ReadExtents(const json::value& value) {
  const auto wrong = [] {
    return ModelError("expected pairs [offset, bytes] of whole pages, in order, at most {}", kMaxMirrorExtents);
  };
  std::vector<FileExtent> extents;
  if (!value.is_array() || value.get_array().size() > kMaxMirrorExtents) return wrong();
  for (const json::value& pair : value.get_array()) {
    if (!pair.is_array() || pair.get_array().size() != 2) return wrong();
    const std::optional<uint64_t> offset = UnsignedIn(pair.get_array()[0]), size = UnsignedIn(pair.get_array()[1]);
    constexpr uint64_t kMax = uint64_t{1} << 60;
    if (!offset.has_value() || !size.has_value() || *offset > kMax || *size > kMax || *size == 0) return wrong();
    if (*offset % kPageBytes != 0 || (!extents.empty() && *offset <= EndOf(extents.back()))) return wrong();
    extents.push_back({*offset, *size});
  }
  return extents;
}

// A mirror that is being opened.
struct Candidate {
  const ModelFolder& folder;
  const std::optional<MirrorExtents>& index;  // absent: each file is whole
  std::shared_ptr<Mirror> mirror;
};

// Returns the name under which the mirror has the file. A GGUF file may have another name than the model's.
std::string NameIn(const Candidate& candidate, const OpenedFile& file, size_t num_files) {
  const std::string& given = candidate.folder.gguf_name();
  return num_files == 1 && !given.empty() ? given : FileNameOf(file);
}

absl::Status CheckIsOther(const OpenedFile& file, const OpenedFile& copy) {
  const auto inode = [](int fd) {
    struct stat info = {};
    return ::fstat(fd, &info) == 0 ? std::optional(std::pair(info.st_dev, info.st_ino)) : std::nullopt;
  };
  const auto own = inode(copy.fd.get());
  if (own == inode(file.fd.get())) {
    return UsageError("--model-mirror: {} is the model's own file; a mirror is a copy on another disk", copy.path);
  }
  for (const FileCopy& other : file.copies) {
    if (own == inode(other.fd.get())) return UsageError("--model-mirror: {} was given twice", copy.path);
  }
  return absl::OkStatus();
}

// Returns the extents that the mirror holds of the file.
absl::StatusOr<std::vector<FileExtent>> HeldExtents(const Candidate& candidate, const OpenedFile& copy) {
  if (!candidate.index.has_value()) return std::vector<FileExtent>{{0, copy.size_bytes}};
  const auto listed = candidate.index->find(FileNameOf(copy));
  if (listed == candidate.index->end()) return std::vector<FileExtent>();
  const std::vector<FileExtent>& extents = listed->second;
  if (!extents.empty() && EndOf(extents.back()) > copy.size_bytes) {
    return ModelError("{}: its index lists bytes behind its end", copy.path);
  }
  return extents;
}

// Opens the mirror's copy of a file. Returns nothing if it has none.
absl::StatusOr<std::optional<FileCopy>> OpenCopy(const Candidate& candidate, const OpenedFile& file,
                                                 uint64_t header_bytes, size_t num_files) {
  const std::string name = NameIn(candidate, file, num_files);
  if (!candidate.folder.Has(name)) return std::nullopt;
  PENSTOCK_ASSIGN_OR_RETURN(OpenedFile copy, candidate.folder.OpenFile(name));
  if (copy.size_bytes != file.size_bytes) {
    return ModelError("{}: {} bytes, but the model's file has {}: it is no copy of it, or not whole", copy.path,
                      copy.size_bytes, file.size_bytes);
  }
  PENSTOCK_RETURN_IF_ERROR(CheckIsOther(file, copy));
  PENSTOCK_ASSIGN_OR_RETURN(const bool has_header, AreEqual(file, copy, {0, header_bytes}));
  if (!has_header) {
    return ModelError("{}: its header differs from the model's: it is of another model", copy.path);
  }
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<FileExtent> held, HeldExtents(candidate, copy));
  return FileCopy{.mirror = candidate.mirror, .fd = std::move(copy.fd), .path = copy.path, .held = std::move(held)};
}

// Compares a page in the middle of each of some tensors.
absl::Status CompareSamples(const std::vector<TensorInfo>& tensors, const std::vector<OpenedFile>& files,
                            const Mirror& mirror) {
  const size_t step = tensors.size() / kMaxSamples + 1;
  std::vector<std::byte> expected(kPageBytes), found(kPageBytes);
  for (size_t i = 0; i < tensors.size(); i += step) {
    const FileExtent& extent = tensors[i].extent;
    const uint64_t size = std::min(extent.size_bytes, kPageBytes);
    const uint64_t at = extent.offset_bytes + (extent.size_bytes - size) / 2;
    const OpenedFile& file = files[tensors[i].file_idx];
    for (const FileCopy& copy : file.copies) {
      if (copy.mirror.get() != &mirror || !copy.Holds({at, size})) continue;
      PENSTOCK_RETURN_IF_ERROR(PreadFully(file.fd.get(), {expected.data(), size}, at, file.path));
      PENSTOCK_RETURN_IF_ERROR(PreadFully(copy.fd.get(), {found.data(), size}, at, copy.path));
      if (std::memcmp(expected.data(), found.data(), size) != 0) {
        return ModelError("{}: tensor '{}' has other bytes than the model's: it is of another model", copy.path,
                          Excerpt(tensors[i].name));
      }
    }
  }
  return absl::OkStatus();
}

// The index of a packed store lists the checksums of all tensors.
absl::Status CompareStores(const ModelFolder& folder, const ModelFolder& mirror) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::string expected, folder.Read(kPackedIndexFile, kMaxIndexBytes));
  PENSTOCK_ASSIGN_OR_RETURN(const std::string found, mirror.Read(kPackedIndexFile, kMaxIndexBytes));
  if (found == expected) return absl::OkStatus();
  return ModelError("{}/{}: differs from the model's: it is of another model", mirror.path(), kPackedIndexFile);
}

}  // namespace

bool FileCopy::Holds(const FileExtent& extent) const {
  auto behind = std::upper_bound(held.begin(), held.end(), extent.offset_bytes,
                                 [](uint64_t offset, const FileExtent& one) { return offset < one.offset_bytes; });
  return behind != held.begin() && EndOf(extent) <= EndOf(*std::prev(behind));
}

void Mirror::CountFault(std::string_view what) {
  const int before = num_faults_.fetch_add(1, std::memory_order_relaxed);
  if (before == 0) LogWarning("mirror {}: {}; these bytes are read from another copy", path_, what);
  if (before + 1 == kMaxFaults) LogWarning("mirror {}: left out after {} faults", path_, kMaxFaults);
}

void CountWrongCopies(const OpenedFile& file, const FileExtent& extent, std::span<const std::byte> right) {
  std::vector<std::byte> found(kChunkBytes);
  for (const FileCopy& copy : file.copies) {
    if (copy.mirror->is_left_out() || !copy.Holds(extent)) continue;
    for (uint64_t done = 0; done < right.size(); done += kChunkBytes) {
      const uint64_t size = std::min(kChunkBytes, right.size() - done);
      const absl::Status read = PreadFully(copy.fd.get(), {found.data(), size}, extent.offset_bytes + done, copy.path);
      if (read.ok() && std::memcmp(found.data(), right.data() + done, size) == 0) continue;
      copy.mirror->CountFault(
          read.ok() ? fmt::format("{} has wrong bytes at offset {} or behind", copy.path, extent.offset_bytes + done)
                    : std::string(Message(read)));
      break;
    }
  }
}

std::string SerializeMirrorIndex(const MirrorExtents& files) {
  json::object written;
  for (const auto& [name, extents] : files) {
    json::array pairs;
    for (const FileExtent& extent : extents) pairs.push_back(json::array{extent.offset_bytes, extent.size_bytes});
    written[name] = std::move(pairs);
  }
  return json::serialize(json::object{{kVersionField, kMirrorVersion},
                                      {"files", std::move(written)},
                                      {"xxh3", fmt::format("{:016x}", DigestOf(files))}}) +
         "\n";
}

absl::StatusOr<MirrorExtents> ParseMirrorIndex(std::string_view text) {
  PENSTOCK_ASSIGN_OR_RETURN(const json::value root, ParseJson(text, Fault::kModel));
  if (!root.is_object()) return ModelError("expected an object, found {}", JsonTypeName(root));
  const json::object& object = root.get_object();
  const json::value* version = object.if_contains(kVersionField);
  if (version == nullptr || UnsignedIn(*version) != kMirrorVersion) {
    return ModelError("this program reads version {} of a mirror's index: make the mirror again", kMirrorVersion);
  }
  const json::value* files = object.if_contains("files");
  if (files == nullptr || !files->is_object()) return ModelError("files: expected an object");
  MirrorExtents parsed;
  for (const auto& [name, value] : files->get_object()) {
    absl::StatusOr<std::vector<FileExtent>> extents = ReadExtents(value);
    if (!extents.ok()) return Annotate(extents.status(), fmt::format("files: '{}'", Excerpt(std::string(name))));
    parsed[std::string(name)] = *std::move(extents);
  }
  const json::value* xxh3 = object.if_contains("xxh3");
  if (xxh3 == nullptr || !xxh3->is_string() || View(xxh3->get_string()) != fmt::format("{:016x}", DigestOf(parsed))) {
    return ModelError("xxh3: the index is damaged: make the mirror again");
  }
  return parsed;
}

std::vector<uint64_t> HeaderBytes(std::span<const TensorInfo> tensors, size_t num_files) {
  std::vector<std::optional<uint64_t>> first(num_files);
  for (const TensorInfo& tensor : tensors) {
    std::optional<uint64_t>& bytes = first[tensor.file_idx];
    bytes = std::min(bytes.value_or(tensor.extent.offset_bytes), tensor.extent.offset_bytes);
  }
  std::vector<uint64_t> headers(num_files);
  for (size_t i = 0; i < num_files; ++i) headers[i] = first[i].value_or(0);
  return headers;
}

std::string FileNameOf(const OpenedFile& file) { return file.path.substr(file.path.rfind('/') + 1); }

absl::Status Checkpoint::AddMirror(const std::string& path, const ModelFolder& folder) {
  absl::StatusOr<ModelFolder> opened = ModelFolder::Open(path);
  if (!opened.ok()) return Annotate(opened.status(), "--model-mirror");
  std::optional<MirrorExtents> index;
  if (opened->Has(kMirrorIndexFile)) {
    PENSTOCK_ASSIGN_OR_RETURN(const std::string text, opened->Read(kMirrorIndexFile, kMaxIndexBytes));
    absl::StatusOr<MirrorExtents> parsed = ParseMirrorIndex(text);
    if (!parsed.ok()) return Annotate(parsed.status(), fmt::format("{}/{}", opened->path(), kMirrorIndexFile));
    index = *std::move(parsed);
  }
  if (format_ == Format::kPacked) PENSTOCK_RETURN_IF_ERROR(CompareStores(folder, *opened));
  const Candidate candidate{.folder = *opened, .index = index, .mirror = std::make_shared<Mirror>(path)};
  const std::vector<uint64_t> headers = HeaderBytes(tensors_, files_.size());
  bool has_copies = false;
  for (size_t i = 0; i < files_.size(); ++i) {
    PENSTOCK_ASSIGN_OR_RETURN(std::optional<FileCopy> copy, OpenCopy(candidate, files_[i], headers[i], files_.size()));
    if (!copy.has_value()) continue;
    files_[i].copies.push_back(*std::move(copy));
    has_copies = true;
  }
  if (!has_copies)
    return ModelError("{}: the mirror has no file of the model, such as {}", path, FileNameOf(files_[0]));
  return CompareSamples(tensors_, files_, *candidate.mirror);
}

}  // namespace penstock
