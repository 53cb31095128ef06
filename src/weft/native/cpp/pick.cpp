// Drawing a token: the definition of weft.generate.sampling, for one row.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

// softmax(scores / temperature) by descending score, ties by index; the `top_k` best (0: all), then
// while the sum before is below `top_p`; the first whose cumulative sum exceeds uniform.
extern "C" __attribute__((visibility("default"))) int64_t weft_pick(
    const float* scores, int64_t count, double temperature, int64_t top_k, double top_p,
    double uniform) {
    std::vector<int32_t> order(count);
    std::iota(order.begin(), order.end(), 0);
    auto value = [&](int32_t i) { return std::isnan(scores[i]) ? -INFINITY : scores[i]; };
    auto better = [&](int32_t a, int32_t b) {
        return value(a) > value(b) || (value(a) == value(b) && a < b);
    };
    int64_t kept = top_k ? std::min(top_k, count) : count;
    std::partial_sort(order.begin(), order.begin() + kept, order.end(), better);
    std::vector<double> weights(kept);
    double best = (double)value(order[0]) / temperature, total = 0;
    for (int64_t i = 0; i < kept; i++)
        total += weights[i] = std::exp((double)value(order[i]) / temperature - best);
    double sum = 0;
    int64_t end = 0;
    while (end < kept && (end == 0 || sum / total < top_p)) sum += weights[end++];
    double target = uniform * sum, passed = 0;
    for (int64_t i = 0; i < end; i++) {
        passed += weights[i];
        if (passed > target) return order[i];
    }
    return order[end - 1];
}
