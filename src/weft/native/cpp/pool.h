// A few threads that run one job together: each runs the whole job and takes its share of each
// phase. Waiting spins briefly and then sleeps, so that a busy machine does not collapse.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

// A gate: `open` releases all threads that wait for its current number.
class Gate {
  public:
    uint32_t number() const { return number_.load(std::memory_order_acquire); }
    void open();
    void wait(uint32_t old);

    static constexpr int SPINS = 1000;                  // polls before a thread sleeps
    static std::atomic<int64_t> waits, looks, sleeps;   // counted, for tests

  private:
    std::atomic<uint32_t> number_{0};
    std::atomic<int> sleepers_{0};
    std::mutex mutex_;
    std::condition_variable changed_;
};

class Pool;

// One thread's view of the team.
class Team {
  public:
    Team(Pool& pool, int id) : pool_(pool), id_(id) {}
    int id() const { return id_; }
    int size() const;
    int64_t next();   // the next item of this phase that is not taken
    void barrier();   // ends a phase: waits for all, and resets the item count

  private:
    Pool& pool_;
    int id_;
};

class Pool {
  public:
    explicit Pool(int threads);
    ~Pool();
    int size() const { return (int)workers_.size() + 1; }
    void run(const std::function<void(Team&)>& job);

  private:
    friend class Team;
    void work(int id);

    std::vector<std::thread> workers_;
    const std::function<void(Team&)>* job_ = nullptr;
    std::atomic<bool> ending_{false};
    std::atomic<int> arrived_{0};
    std::atomic<int64_t> item_{0};
    Gate start_, together_;
    std::mutex one_job_;
};

int usable_cores();
std::shared_ptr<Pool> shared_pool();   // of this process; created at first use, and again after a fork
void set_threads(int threads);         // 0: one for each usable core
