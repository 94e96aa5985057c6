#include "host/heartbeats.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>

#include "base/check.h"

namespace octet {
namespace {

constexpr double kPackets = 256;  // a second that a rank sends, and hears, at most: no socket's buffer overflows
constexpr double kLate = 4;       // beats

struct Card {  // what a rank tells the others about itself
  std::array<char, 256> machine{};
  uint64_t run = 0;
  uint16_t port = 0;
};
struct Packet {
  uint64_t run;
  int32_t rank, size;
};

sockaddr_in address_of(uint32_t address, uint16_t port) {
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_addr.s_addr = address;
  a.sin_port = port;
  return a;
}

uint32_t look_up(const char* machine) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_family = AF_INET;
  if (getaddrinfo(machine, nullptr, &hints, &found) != 0) return 0;
  sockaddr_in a;
  std::memcpy(&a, found->ai_addr, sizeof a);
  freeaddrinfo(found);
  return a.sin_addr.s_addr;
}

}  // namespace

Heartbeats::Heartbeats(Host& host) : rank_(host.rank()), peers_(size_t(host.size())) {
  Card mine;
  gethostname(mine.machine.data(), mine.machine.size() - 1);
  mine.run = uint64_t(std::chrono::system_clock::now().time_since_epoch().count()) ^ uint64_t(getpid()) << 40;
  socket_ = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_in here = address_of(INADDR_ANY, 0);
  socklen_t size = sizeof here;
  if (socket_ >= 0 && ::bind(socket_, reinterpret_cast<sockaddr*>(&here), size) == 0 &&
      ::getsockname(socket_, reinterpret_cast<sockaddr*>(&here), &size) == 0)
    mine.port = here.sin_port;
  std::vector<Card> all(peers_.size());
  host.all_gather(all.data(), &mine, sizeof mine);
  run_ = all[0].run;
  if (double(all.size()) > kPackets) interval_ = double(all.size()) / kPackets;

  // Each rank asks the name service for one machine, that of the next rank elsewhere, and tells the others: a thousand
  // ranks that each asked for every machine would wait for it for minutes, more so where names cannot be found.
  const size_t R = all.size();
  std::vector<size_t> next(R);  // of each rank: the next one elsewhere, or itself
  for (size_t r = 0; r < R; ++r) next[r] = r;
  for (size_t i = 2 * R; i-- > 0;) {
    const size_t r = i % R, after = (r + 1) % R;
    next[r] = all[r].machine != all[after].machine ? after : next[after] == after ? r : next[after];
  }
  const size_t asked = next[size_t(rank_)];
  const uint32_t found = asked == size_t(rank_) ? 0 : look_up(all[asked].machine.data());
  std::vector<uint32_t> answers(R);
  host.all_gather(answers.data(), &found, sizeof found);
  std::map<std::array<char, 256>, uint32_t> addresses;
  for (size_t r = 0; r < R; ++r)
    if (answers[r]) addresses.emplace(all[next[r]].machine, answers[r]);
  addresses[mine.machine] = htonl(INADDR_LOOPBACK);
  for (size_t r = 0; r < R; ++r) {
    if (int(r) == rank_ || all[r].port == 0 || mine.port == 0) continue;
    if (const auto at = addresses.find(all[r].machine); at != addresses.end()) peers_[r].address = at->second;
    peers_[r].port = all[r].port;
  }
  beat(0);  // every socket is open: whoever stops later was heard of
}

Heartbeats::~Heartbeats() {
  if (socket_ >= 0) ::close(socket_);
}

void Heartbeats::beat(double now) {
  if (socket_ < 0) return;
  const Packet mine{run_, rank_, int32_t(peers_.size())};
  if (now - sent_ >= interval_) {
    sent_ = now;
    for (const Peer& p : peers_) {
      if (p.address == 0) continue;
      const sockaddr_in to = address_of(p.address, p.port);
      // Lost or refused is as good as unheard.
      (void)::sendto(socket_, &mine, sizeof mine, MSG_DONTWAIT, reinterpret_cast<const sockaddr*>(&to), sizeof to);
    }
  }
  Packet other;
  for (ssize_t n; (n = ::recv(socket_, &other, sizeof other, MSG_DONTWAIT)) >= 0 || errno == ECONNREFUSED;) {
    const bool ours = n == sizeof other && other.run == run_ && other.size == mine.size;
    if (ours && other.rank >= 0 && other.rank < other.size) peers_[size_t(other.rank)].heard = now;
  }
}

std::string Heartbeats::missing(double now) const {
  std::string text;
  for (size_t r = 0; r < peers_.size(); ++r)
    if (const double heard = peers_[r].heard; heard >= 0 && now - heard > kLate * interval_)
      text += concat(text.empty() ? "" : ", ", "rank ", r, " has not been heard of for ", int(now - heard), " s");
  return text;
}

}  // namespace octet
