#include "reference.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace wye::sanitize {
namespace {

constexpr double kNothing = -1e30;  // the greatest score of a row that has seen nothing

std::vector<double> normalised(const std::vector<double>& row, const float* weight, double eps) {
  double squares = 0;
  for (double value : row) squares += value * value;
  const double factor = 1 / std::sqrt(squares / double(row.size()) + eps);
  std::vector<double> out(row.size());
  for (size_t i = 0; i < row.size(); ++i) out[i] = row[i] * factor * weight[i];
  return out;
}

void add(std::vector<double>& row, const std::vector<double>& other) {
  for (size_t i = 0; i < row.size(); ++i) row[i] += other[i];
}

// Softmax state of one row and head.
struct State {
  double peak = kNothing, weight = 0;
  std::vector<double> output;

  explicit State(int head_dim) : output(head_dim, 0) {}

  void scale_to(double after) {
    const double factor = std::exp2(peak - after);
    weight *= factor;
    for (double& value : output) value *= factor;
    peak = after;
  }
  void merge(State other) {
    const double after = std::max(peak, other.peak);
    scale_to(after);
    other.scale_to(after);
    weight += other.weight;
    add(output, other.output);
  }
};

}  // namespace

void transform_block(double* values) {
  for (int distance = 1; distance < kBlock; distance *= 2)
    for (int i = 0; i < kBlock; ++i)
      if ((i & distance) == 0) {
        const double a = values[i], b = values[i + distance];
        values[i] = a + b;
        values[i + distance] = a - b;
      }
}

PlainMatrix::PlainMatrix(const std::vector<uint16_t>& weights, int num_outputs, int num_inputs, bool is_int8)
    : num_outputs_(num_outputs),
      num_inputs_(num_inputs),
      num_blocks_((num_inputs + kBlock - 1) / kBlock),
      is_int8_(is_int8) {
  if (!is_int8) {
    for (uint16_t weight : weights) values_.push_back(to_float(weight));
    return;
  }
  values_.assign(size_t(num_outputs) * num_blocks_ * kBlock, 0.0);
  for (int output = 0; output < num_outputs; ++output)
    for (int block = 0; block < num_blocks_; ++block) {
      double* values = &values_[(size_t(output) * num_blocks_ + block) * kBlock];
      for (int i = 0; i < kBlock && block * kBlock + i < num_inputs; ++i)
        values[i] = to_float(weights[size_t(output) * num_inputs + block * kBlock + i]);
      transform_block(values);
      double peak = 0;
      for (int i = 0; i < kBlock; ++i) peak = std::max(peak, std::fabs(values[i]));
      const float scale = to_float(bfloat16_above(float(peak) / 127.0f));
      for (int i = 0; i < kBlock; ++i) values[i] = peak > 0 ? std::nearbyint(float(values[i]) * (1.0f / scale)) : 0.0;
      scales_.push_back(to_float(bfloat16_above(scale / kBlock)));
    }
}

std::vector<double> PlainMatrix::times(const std::vector<double>& inputs) const {
  if (is_int8_) return times_int8(inputs);
  std::vector<double> taken, out(num_outputs_, 0.0);
  for (double input : inputs) taken.push_back(rounded(input));
  for (int output = 0; output < num_outputs_; ++output) {
    const double* weights = values_.data() + size_t(output) * num_inputs_;
    for (int k = 0; k < num_inputs_; ++k) out[output] += weights[k] * taken[k];
  }
  return out;
}

std::vector<double> PlainMatrix::times_int8(const std::vector<double>& inputs) const {
  std::vector<double> out(num_outputs_, 0.0);
  for (int block = 0; block < num_blocks_; ++block) {
    double values[kBlock] = {}, peak = 0;
    for (int i = 0; i < kBlock && block * kBlock + i < num_inputs_; ++i) values[i] = float(inputs[block * kBlock + i]);
    transform_block(values);
    for (double value : values) peak = std::max(peak, std::fabs(value));
    for (double& value : values) value = peak > 0 ? std::nearbyint(value * (127 / peak)) : 0.0;
    for (int output = 0; output < num_outputs_; ++output) {
      const size_t place = size_t(output) * num_blocks_ + block;
      const double* weights = values_.data() + place * kBlock;
      double sum = 0;
      for (int i = 0; i < kBlock; ++i) sum += values[i] * weights[i];
      out[output] += sum * scales_[place] * (peak / 127);
    }
  }
  return out;
}

PlainModel::PlainModel(const TinyModel& tiny, bool is_int8, int num_slots, int page_size)
    : tiny_(tiny), page_size_(page_size), head_(tiny.head, tiny.dims.vocab_size, tiny.dims.hidden_size, is_int8) {
  const Dimensions& dims = tiny.dims;
  const std::vector<double> nothing(size_t(num_slots) * dims.num_kv_heads * dims.head_dim, NAN);
  for (const TinyLayer& layer : tiny.layers)
    layers_.push_back({PlainMatrix(layer.qkv, dims.projected(), dims.hidden_size, is_int8),
                       PlainMatrix(layer.output, dims.hidden_size, dims.attended(), is_int8),
                       PlainMatrix(layer.gate_up, 2 * dims.intermediate_size, dims.hidden_size, is_int8),
                       PlainMatrix(layer.down, dims.hidden_size, dims.intermediate_size, is_int8), nothing, nothing});
}

// Projects and rotates one row, stores its K and V, and returns its queries.
std::vector<double> PlainModel::project(const StepTables& tables, int index, const std::vector<double>& hidden,
                                        int row) {
  const Dimensions& dims = tiny_.dims;
  const TinyLayer& weights = tiny_.layers[index];
  Layer& layer = layers_[index];
  std::vector<double> heads = layer.qkv.times(normalised(hidden, weights.input_norm.data(), dims.norm_eps));
  for (size_t i = 0; i < weights.qkv_bias.size(); ++i) heads[i] += weights.qkv_bias[i];
  const int dim = dims.head_dim, half = dim / 2;
  for (int head = 0; head < dims.num_heads + dims.num_kv_heads; ++head) {
    std::vector<double> one(heads.begin() + head * dim, heads.begin() + (head + 1) * dim);
    if (!weights.head_norm.empty()) one = normalised(one, &weights.head_norm[size_t(head) * dim], dims.norm_eps);
    for (int i = 0; i < half; ++i) {
      const float angle = float(tables.positions[row]) * tiny_.frequencies[i];
      const double c = std::cos(angle), s = std::sin(angle);
      heads[head * dim + i] = one[i] * c - one[half + i] * s;
      heads[head * dim + half + i] = one[half + i] * c + one[i] * s;
    }
  }
  for (int i = 0; i < dims.num_kv_heads * dim; ++i) {
    const size_t place = size_t(tables.slots[row]) * dims.num_kv_heads * dim + i;
    layer.keys[place] = rounded(heads[dims.num_heads * dim + i]);
    layer.values[place] = rounded(heads[(dims.num_heads + dims.num_kv_heads) * dim + i]);
  }
  heads.resize(size_t(dims.num_heads) * dim);
  return heads;
}

std::vector<double> PlainModel::attend(const StepTables& tables, int index, int lane, int row,
                                       const std::vector<double>& queries) {
  const Dimensions& dims = tiny_.dims;
  const Layer& layer = layers_[index];
  const int dim = dims.head_dim, group = dims.num_heads / dims.num_kv_heads;
  const int within = row - tables.query_starts[lane], rows = tables.query_starts[lane + 1] - tables.query_starts[lane];
  const int context = tables.context_lens[lane], place = context - rows + within;
  const uint8_t* mask = tables.masks != nullptr ? tables.masks[lane] : nullptr;
  auto sees = [&](int key) {
    if (mask != nullptr) return mask[size_t(within) * context + key] != 0;
    return key <= place && (dims.window == 0 || key > place - dims.window);
  };
  auto slot_of = [&](int key) {
    const int32_t page = tables.block_tables[tables.table_starts[lane] + key / page_size_];
    return size_t(page) * page_size_ + key % page_size_;
  };
  std::vector<double> out;
  for (int head = 0; head < dims.num_heads; ++head) {
    std::vector<double> query(dim);
    const double scale = 1 / std::sqrt(double(dim)) / std::log(2.0);
    for (int d = 0; d < dim; ++d) query[d] = rounded(queries[head * dim + d] * scale);
    State total(dim);
    for (int start = 0; start < context; start += kSpanKeys) {
      State span(dim);
      for (int block = start; block < std::min(start + kSpanKeys, context); block += kKeyBlock) {
        std::vector<std::pair<double, size_t>> seen;  // score and place
        for (int key = block; key < std::min({block + kKeyBlock, start + kSpanKeys, context}); ++key) {
          if (!sees(key)) continue;
          const size_t at = (slot_of(key) * dims.num_kv_heads + head / group) * dim;
          double score = 0;
          for (int d = 0; d < dim; ++d) score += query[d] * layer.keys[at + d];
          seen.emplace_back(score, at);
        }
        if (seen.empty()) continue;
        span.scale_to(std::max(span.peak, std::max_element(seen.begin(), seen.end())->first));
        for (const auto& [score, at] : seen) {
          const double weight = std::exp2(score - span.peak);
          span.weight += weight;
          for (int d = 0; d < dim; ++d) span.output[d] += rounded(weight) * layer.values[at + d];
        }
      }
      total.merge(span);
    }
    for (int d = 0; d < dim; ++d) out.push_back(total.weight > 0 ? total.output[d] / total.weight : 0.0);
  }
  return out;
}

PlainModel::Results PlainModel::step(const StepTables& tables) {
  const Dimensions& dims = tiny_.dims;
  std::vector<std::vector<double>> hidden(tables.num_rows), queries(tables.num_rows);
  for (int row = 0; row < tables.num_rows; ++row)
    for (int i = 0; i < dims.hidden_size; ++i)
      hidden[row].push_back(to_float(tiny_.embedding[size_t(tables.token_ids[row]) * dims.hidden_size + i]));
  for (int index = 0; index < dims.num_layers; ++index) {
    const Layer& layer = layers_[index];
    for (int row = 0; row < tables.num_rows; ++row) queries[row] = project(tables, index, hidden[row], row);
    for (int lane = 0; lane < tables.num_lanes; ++lane)
      for (int row = tables.query_starts[lane]; row < tables.query_starts[lane + 1]; ++row) {
        add(hidden[row], layer.output.times(attend(tables, index, lane, row, queries[row])));
        std::vector<double> gates =
            layer.gate_up.times(normalised(hidden[row], tiny_.layers[index].post_norm.data(), dims.norm_eps));
        std::vector<double> gated(dims.intermediate_size);
        for (int i = 0; i < dims.intermediate_size; ++i)
          gated[i] = gates[i] / (1 + std::exp(-gates[i])) * gates[dims.intermediate_size + i];
        add(hidden[row], layer.down.times(gated));
      }
  }
  Results results;
  auto read = [&](int64_t row) { return normalised(hidden[row], tiny_.final_norm.data(), dims.norm_eps); };
  for (int i = 0; i < tables.num_readouts; ++i) {
    const std::vector<double> row = head_.times(read(tables.readout_rows[i]));
    results.logits.insert(results.logits.end(), row.begin(), row.end());
  }
  for (int i = 0; i < tables.num_hidden; ++i) {
    const std::vector<double> row = read(tables.hidden_rows[i]);
    results.hidden.insert(results.hidden.end(), row.begin(), row.end());
  }
  return results;
}

}  // namespace wye::sanitize
