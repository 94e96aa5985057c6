#pragma once
// Work on a stream with all cores, in bounded memory and in order: produce() and consume() run on the calling thread,
// in stream order; work() on any thread. The first exception, in stream order, ends it. The order of results depends on
// nothing but the stream.
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <thread>
#include <vector>

namespace octet {

template <class Task, class Result>
void ordered_parallel(int threads, const std::function<bool(Task&)>& produce,
                      const std::function<Result(const Task&)>& work, const std::function<void(Result)>& consume) {
  std::mutex mutex;
  std::condition_variable wake;
  std::deque<std::packaged_task<Result()>> queue;
  bool closed = false;
  std::vector<std::jthread> workers;
  struct Close {  // declared after the workers: runs before their join, whatever is thrown
    std::mutex& mutex;
    std::condition_variable& wake;
    bool& closed;
    std::deque<std::packaged_task<Result()>>& queue;
    ~Close() {
      const std::lock_guard lock(mutex);
      closed = true;
      queue.clear();
      wake.notify_all();
    }
  } close{mutex, wake, closed, queue};
  for (int i = 0; i < threads; ++i)
    workers.emplace_back([&] {
      for (;;) {
        std::unique_lock lock(mutex);
        wake.wait(lock, [&] { return closed || !queue.empty(); });
        if (queue.empty()) return;
        std::packaged_task<Result()> task = std::move(queue.front());
        queue.pop_front();
        lock.unlock();
        task();
      }
    });

  const size_t most = 2 * size_t(threads) + 2;  // in flight: enough that no thread waits for this one's writing
  std::deque<std::future<Result>> results;
  for (bool more = true; more || !results.empty();) {
    while (more && results.size() < most) {
      Task task;
      if (!(more = produce(task))) break;
      std::packaged_task<Result()> job([&work, task = std::move(task)] { return work(task); });
      results.push_back(job.get_future());
      const std::lock_guard lock(mutex);
      queue.push_back(std::move(job));
      wake.notify_one();
    }
    if (results.empty()) break;
    consume(results.front().get());
    results.pop_front();
  }
}

}  // namespace octet
