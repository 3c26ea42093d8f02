// A search as the document "attnkit.search/1".
#pragma once

#include <nlohmann/json.hpp>

#include "core/search/search.hpp"

namespace attnkit::search {

// Everything but "command", "date", "machine", "seconds" and "files", which are the host's to add.
nlohmann::ordered_json result_document(const Search& search);

}  // namespace attnkit::search
