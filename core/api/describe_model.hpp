// A model and a session as documents: the grid, who decided each cell, and what it costs at which length.
#pragma once

#include <string>
#include <vector>

#include "core/model/model.hpp"
#include "core/session/session.hpp"

namespace attnkit {

// JSON "attnkit.model-description/1" of attnkit.h.  Throws Error: a length below 1.
std::string describe_model(const Model& model, const std::vector<int64_t>& lengths);

// JSON "attnkit.session/1" of attnkit.h.
std::string describe_session(const Session& session);

}  // namespace attnkit
