// Reads arguments of calls in notations that are not JSON, and returns them as JSON.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "penstock/chat/answer/json_pieces.h"

namespace penstock {

struct ValueRead {
  JsonExtent::Kind kind = JsonExtent::Kind::kBroken;
  size_t num_bytes = 0;   // if whole
  std::string json = {};  // an object, in which a key may occur twice; its beginning if it is cut off
};

// Reads the object with which `text` begins, as Gemma 4 writes it: {key:<|"|>text<|"|>,list:[1,true]}. JSON is another
// spelling of the same.
ValueRead ReadGemmaObject(std::string_view text);

// Reads the arguments of a Python call with which `text` begins: (key="text", list=[1, True]). They become an object.
ValueRead ReadPythonArguments(std::string_view text);

}  // namespace penstock
