#pragma once
// A map of bounded size that evicts the least recently used entry.
#include <cstddef>
#include <list>
#include <map>
#include <utility>

namespace octet {

template <class Key, class Value>
class Recent {
 public:
  explicit Recent(size_t most) : most_(most) {}
  Value* find(const Key& k) {  // null: it is not there. Valid until the next make()
    const auto found = places_.find(k);
    if (found == places_.end()) return nullptr;
    entries_.splice(entries_.begin(), entries_, found->second);  // asked for last
    return &found->second->value;
  }
  bool full() const { return entries_.size() >= most_; }  // the next make() will evict an entry
  template <class... A>
  Value& make(const Key& k, A&&... arguments) {                // of a key that is not there
    entries_.emplace_front(k, std::forward<A>(arguments)...);  // first: it may throw
    places_[k] = entries_.begin();
    while (entries_.size() > most_) {
      places_.erase(entries_.back().key);
      entries_.pop_back();
    }
    return entries_.front().value;
  }
  void clear() { places_.clear(), entries_.clear(); }

 private:
  struct Entry {
    template <class... A>
    explicit Entry(const Key& k, A&&... arguments) : key(k), value(std::forward<A>(arguments)...) {}
    Key key;
    Value value;
  };
  size_t most_;
  std::list<Entry> entries_;
  std::map<Key, typename std::list<Entry>::iterator> places_;
};

}  // namespace octet
