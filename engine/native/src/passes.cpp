#include "passes.h"

#include <algorithm>
#include <cmath>

#include "sampling_form.h"
#include "sampling_rows.h"
#include "team.h"

namespace wye {
namespace {

constexpr int64_t kPartTiles = 32;  // of a row that one thread works on

// Registers of one thread: those that lie in no input and no output.
struct Registers {
  explicit Registers(int64_t count) : values(size_t(count * kPassTile)) {}
  std::vector<float> values;
  float* at[kMostRegisters];
};

// Points registers at a tile of a row, and brings there what is not floats already.
void prepare(const Pass& pass, int64_t row, int64_t begin, int64_t size, Registers& registers) {
  for (size_t i = 0; i < pass.vectors.size(); ++i) {
    const PassVector& vector = pass.vectors[i];
    int64_t place = (vector.is_shared ? 0 : row * pass.size) + begin;
    if (vector.is_bool) {
      registers.at[i] = registers.values.data() + i * kPassTile;
      std::copy_n(static_cast<const uint8_t*>(vector.data) + place, size, registers.at[i]);
    } else {
      registers.at[i] = const_cast<float*>(static_cast<const float*>(vector.data) + place);  // no step writes to it
    }
  }
  for (const PassOutput& output : pass.outputs) {
    if (output.is_bool) continue;
    registers.at[pass.num_inputs() + output.made_by] = static_cast<float*>(output.data) + row * pass.size + begin;
  }
}

// Returns the best token of the part, if there is a draw.
Best run_part(const SamplingForm& form, const Pass& pass, int64_t row, int64_t begin, int64_t end,
              Registers& registers) {
  int64_t num_inputs = pass.num_inputs(), num_vectors = int64_t(pass.vectors.size());
  for (int64_t i = num_vectors; i < num_inputs + int64_t(pass.steps.size()); ++i) {
    registers.at[i] = registers.values.data() + i * kPassTile;
    if (i < num_inputs) {
      std::fill_n(registers.at[i], kPassTile, pass.scalars[row * pass.num_scalars + i - num_vectors]);
    }
  }
  const NoiseKey* keys = pass.keys + row * pass.num_keys;
  Best best{-INFINITY, -INFINITY, -1};
  for (; begin < end; begin += kPassTile) {
    int64_t size = std::min(kPassTile, end - begin);
    prepare(pass, row, begin, size, registers);
    form.pass(pass.steps.data(), int64_t(pass.steps.size()), registers.at, num_inputs, size, pass.hashes + begin, keys);
    if (pass.draw != nullptr) {
      form.draw_hashed(registers.at[num_inputs + pass.draw->made_by], pass.hashes + begin, begin, size,
                       keys[pass.draw->key], best);
    }
    for (const PassOutput& output : pass.outputs) {
      if (!output.is_bool) continue;
      const float* made = registers.at[num_inputs + output.made_by];
      std::transform(made, made + size, static_cast<uint8_t*>(output.data) + row * pass.size + begin,
                     [](float value) { return uint8_t(value != 0); });
    }
  }
  return best;
}

// The tokens of all rows from the best of their parts, which lie row by row.
void write_tokens(const std::vector<Best>& found, int64_t num_parts, int64_t* tokens) {
  for (size_t first = 0; first < found.size(); first += num_parts) {
    Best best = found[first];
    for (int64_t part = 1; part < num_parts; ++part) {
      if (found[first + part].score > best.score) best = found[first + part];  // of equals the earlier has the lower id
    }
    *tokens++ = best.score == INFINITY ? -1 : std::max<int64_t>(best.id, 0);
  }
}

}  // namespace

void run_pass(Team* team, const SamplingForm& form, const Pass& pass) {
  constexpr int64_t kPart = kPartTiles * kPassTile;
  int64_t num_parts = (pass.size + kPart - 1) / kPart, num_chunks = pass.num_rows * num_parts;
  // A draw takes about as long as a few operations do.
  team = worth_calling(team, num_chunks, pass.num_rows * pass.size * (pass.draw == nullptr ? 1 : 2));
  std::vector<Best> found(pass.draw == nullptr ? 0 : num_chunks);
  std::vector<Registers> registers;
  int num_workers = team == nullptr ? 1 : team->size();
  registers.reserve(num_workers);
  for (int i = 0; i < num_workers; ++i) registers.emplace_back(pass.num_inputs() + int64_t(pass.steps.size()));
  spread(team, int(num_chunks), [&](int chunk, int worker) {
    int64_t begin = chunk % num_parts * kPart;
    Best best = run_part(form, pass, chunk / num_parts, begin, std::min(begin + kPart, pass.size), registers[worker]);
    if (pass.draw != nullptr) found[chunk] = best;
  });
  if (pass.draw != nullptr) write_tokens(found, num_parts, pass.draw->tokens);
}

}  // namespace wye
