// The names of fields that requests of other programs have, and typing errors in the names of ours.
#pragma once

#include "penstock/job/input/sampling_fields.h"

namespace penstock {

// Returns whether Penstock reads a field of this name in requests.
bool IsRequestField(std::string_view name);

// Refuses fields of other programs' requests that would change the answer and that Penstock does not support, and names
// that are nearly those of its own fields.
void RefuseUnsupported(FieldReader& fields);

}  // namespace penstock
