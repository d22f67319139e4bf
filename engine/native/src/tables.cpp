// Bounds of every table, checked before any work.

#include <stdexcept>
#include <string>

#include "step.h"

namespace wye {
namespace {

[[noreturn]] void refuse(const char* table, size_t place, int64_t value, const std::string& expected) {
  throw std::invalid_argument(std::string(table) + "[" + std::to_string(place) + "] is " + std::to_string(value) +
                              ", expected " + expected);
}

void check_range(const char* table, const int64_t* values, int count, int64_t limit) {
  for (int i = 0; i < count; ++i)
    if (values[i] < 0 || values[i] >= limit) refuse(table, i, values[i], "0.." + std::to_string(limit - 1));
}

void check_lane(const StepTables& tables, const Pages& pages, int lane) {
  const int64_t rows = int64_t{tables.query_starts[lane + 1]} - tables.query_starts[lane];
  if (rows < 0)
    refuse("query_starts", lane + 1, tables.query_starts[lane + 1],
           "at least " + std::to_string(tables.query_starts[lane]));
  const int context = tables.context_lens[lane];
  if (context < rows) refuse("context_lens", lane, context, "at least the lane's " + std::to_string(rows) + " rows");
  const int64_t held = int64_t(tables.table_starts[lane + 1]) - tables.table_starts[lane];
  if (held < 0)
    refuse("table_starts", lane + 1, tables.table_starts[lane + 1],
           "at least " + std::to_string(tables.table_starts[lane]));
  if (held * pages.page_size < context)
    refuse("context_lens", lane, context, "at most " + std::to_string(held * pages.page_size) + ", its pages' tokens");
  const int32_t* table = tables.block_tables + tables.table_starts[lane];
  for (int i = 0; i < held; ++i)
    if (table[i] < 0 || table[i] >= pages.num_pages)
      refuse("block_tables", tables.table_starts[lane] + i, table[i], "0.." + std::to_string(pages.num_pages - 1));
}

}  // namespace

void check_tables(const Model& model, const Pages& pages, const StepTables& tables, size_t num_block_tables) {
  const int rows = tables.num_rows;
  if (tables.query_starts[0] != 0) refuse("query_starts", 0, tables.query_starts[0], "0");
  if (tables.query_starts[tables.num_lanes] != rows)
    refuse("query_starts", tables.num_lanes, tables.query_starts[tables.num_lanes], "the " + std::to_string(rows) + " rows");
  if (tables.table_starts[0] != 0) refuse("table_starts", 0, tables.table_starts[0], "0");
  for (int lane = 0; lane < tables.num_lanes; ++lane) {
    const int64_t end = tables.table_starts[lane + 1];
    if (end < 0 || size_t(end) > num_block_tables)
      refuse("table_starts", lane + 1, end, "at most " + std::to_string(num_block_tables));
    check_lane(tables, pages, lane);
  }
  check_range("token_ids", tables.token_ids, rows, model.dims.vocab_size);
  check_range("positions", tables.positions, rows, int64_t{1} << 31);
  check_range("slots", tables.slots, rows, int64_t(pages.num_pages) * pages.page_size);
  check_range("readout_rows", tables.readout_rows, tables.num_readouts, rows);
  check_range("hidden_rows", tables.hidden_rows, tables.num_hidden, rows);
}

}  // namespace wye
