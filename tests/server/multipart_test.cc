// Proves that a form gives the same fields however its body is cut, and that broken forms are refused.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "penstock/base/status.h"
#include "penstock/server/batches/multipart.h"

namespace penstock::server {
namespace {

struct Form {
  absl::Status status;
  std::vector<std::string> fields;  // "name|file name|value"
};

Form Read(std::string_view body, const std::vector<size_t>& cuts) {
  Form form;
  MultipartReader reader("XX", {.begin =
                                    [&](const MultipartField& field) {
                                      form.fields.push_back(field.name + "|" + field.file_name.value_or("-") + "|");
                                      return absl::OkStatus();
                                    },
                                .write =
                                    [&](std::string_view bytes) {
                                      form.fields.back() += bytes;
                                      return absl::OkStatus();
                                    },
                                .end =
                                    [&] {
                                      form.fields.back() += ".";
                                      return absl::OkStatus();
                                    }});
  size_t at = 0;
  for (const size_t cut : cuts) {
    const size_t size = std::min(cut, body.size() - at);
    form.status.Update(reader.Write(body.substr(at, size)));
    at += size;
  }
  form.status.Update(reader.Write(body.substr(at)));
  form.status.Update(reader.Finish());
  return form;
}

constexpr std::string_view kBody =
    "--XX\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n"
    "--XX\r\ncontent-type: text/plain\r\nCONTENT-DISPOSITION: form-data; name=file; filename=\"a \\\"b\\\"; "
    "c.jsonl\"\r\n\r\n"
    "{\"a\": 1}\r\n--X\r\n\r\n-\r\r\n--XX--\r\n";

RC_GTEST_PROP(Multipart, FieldsDoNotDependOnHowTheBodyIsCut, ()) {
  const auto cuts = *rc::gen::container<std::vector<size_t>>(rc::gen::inRange<size_t>(0, 40));
  const Form form = Read(kBody, cuts);
  RC_ASSERT(form.status.ok());
  RC_ASSERT(form.fields ==
            std::vector<std::string>({"purpose|-|batch.", "file|a \"b\"; c.jsonl|{\"a\": 1}\r\n--X\r\n\r\n-\r."}));
}

TEST(Multipart, BrokenFormsAreRefused) {
  EXPECT_FALSE(Read(kBody.substr(0, kBody.size() - 6), {}).status.ok());
  EXPECT_FALSE(Read("", {}).status.ok());
  EXPECT_FALSE(Read("--XXy", {}).status.ok());
  EXPECT_FALSE(Read("--XX\r\nContent-Disposition: form-data\r\n\r\nx\r\n--XX--", {}).status.ok());
  EXPECT_FALSE(Read("--XX\r\n" + std::string(9000, 'h'), {}).status.ok());
}

TEST(Multipart, TheBoundaryComesFromTheContentType) {
  EXPECT_EQ(MultipartReader::BoundaryOf("multipart/form-data; boundary=\"a b\""), "a b");
  EXPECT_EQ(MultipartReader::BoundaryOf("Multipart/Form-Data;charset=x; Boundary=ab"), "ab");
  EXPECT_EQ(MultipartReader::BoundaryOf("application/json"), std::nullopt);
  EXPECT_EQ(MultipartReader::BoundaryOf("multipart/form-data"), std::nullopt);
  EXPECT_EQ(MultipartReader::BoundaryOf("multipart/form-data; boundary=" + std::string(71, 'a')), std::nullopt);
}

}  // namespace
}  // namespace penstock::server
