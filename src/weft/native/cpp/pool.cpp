#include "pool.h"

#include <algorithm>

#if defined(__linux__)
#include <sched.h>
#endif
#include <unistd.h>

std::atomic<int64_t> Gate::waits{0}, Gate::looks{0}, Gate::sleeps{0};

static inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

void Gate::open() {
    number_.fetch_add(1);
    if (sleepers_.load()) {
        { std::lock_guard<std::mutex> lock(mutex_); }
        changed_.notify_all();
    }
}

void Gate::wait(uint32_t old) {
    int look = 0;
    while (look < SPINS && number() == old) {
        relax();
        look++;
    }
    waits.fetch_add(1, std::memory_order_relaxed);
    looks.fetch_add(look, std::memory_order_relaxed);
    if (number() != old) return;
    sleeps.fetch_add(1, std::memory_order_relaxed);
    std::unique_lock<std::mutex> lock(mutex_);
    sleepers_.fetch_add(1);
    changed_.wait(lock, [&] { return number_.load() != old; });
    sleepers_.fetch_sub(1);
}

int Team::size() const { return pool_.size(); }

int64_t Team::next() { return pool_.item_.fetch_add(1, std::memory_order_relaxed); }

void Team::barrier() {
    uint32_t old = pool_.together_.number();
    if (pool_.arrived_.fetch_add(1) + 1 == pool_.size()) {
        pool_.arrived_.store(0);
        pool_.item_.store(0);
        pool_.together_.open();
    } else {
        pool_.together_.wait(old);
    }
}

Pool::Pool(int threads) {
    for (int id = 1; id < threads; id++) workers_.emplace_back();
    for (int id = 1; id < threads; id++) workers_[id - 1] = std::thread(&Pool::work, this, id);
}

Pool::~Pool() {
    ending_.store(true);
    start_.open();
    for (auto& worker : workers_) worker.join();
}

void Pool::work(int id) {
    Team team(*this, id);
    uint32_t seen = 0;  // the pool's first job opens gate number 0
    while (true) {
        start_.wait(seen);
        seen++;
        if (ending_.load()) return;
        (*job_)(team);
        team.barrier();
    }
}

void Pool::run(const std::function<void(Team&)>& job) {
    std::lock_guard<std::mutex> lock(one_job_);
    job_ = &job;
    start_.open();
    Team team(*this, 0);
    job(team);
    team.barrier();
}

int usable_cores() {
#if defined(__linux__)
    cpu_set_t mask;
    if (sched_getaffinity(0, sizeof mask, &mask) == 0) return std::max(1, CPU_COUNT(&mask));
#endif
    return std::max(1u, std::thread::hardware_concurrency());
}

static std::mutex pool_mutex;
static std::shared_ptr<Pool>* pool = nullptr;
static pid_t owner = 0;
static int wanted = 0;

std::shared_ptr<Pool> shared_pool() {
    std::lock_guard<std::mutex> lock(pool_mutex);
    // A forked child has the memory of its parent but not its threads: the old pool is left alone.
    if (!pool || owner != getpid()) {
        owner = getpid();
        pool = new std::shared_ptr<Pool>(new Pool(wanted ? wanted : usable_cores()));
    }
    return *pool;
}

void set_threads(int threads) {
    std::lock_guard<std::mutex> lock(pool_mutex);
    wanted = std::max(0, threads);
    if (pool && owner == getpid()) delete pool;
    pool = nullptr;
}
