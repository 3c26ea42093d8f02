#include "core/search/leader.hpp"

namespace attnkit::search {

const Ranked* Leader::update(const Record& changed, const std::deque<Record>& all) {
  if (is_stale_ || (leader_ && leader_->record == &changed)) {
    leader_.reset();
    is_stale_ = false;
    for (const Record& record : all) consider(record);
  } else {
    consider(changed);
  }
  return leader_ ? &*leader_ : nullptr;
}

void Leader::consider(const Record& record) {
  Ranked ranked = standing_(record);
  if (is_rankable(ranked) && (!leader_ || is_before(ranked, *leader_, settings_))) leader_ = std::move(ranked);
}

}  // namespace attnkit::search
