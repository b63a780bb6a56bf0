// The products of one phase of a layer, cut into tasks.
//
// Few rows: a task is one part of the inputs of some outputs, and whoever is the last of these outputs puts the
// parts together. Many rows: a task is some outputs of some rows, whole.

#pragma once

#include "kvchat/engine/kernels/decoder_layers/layer.h"
#include "kvchat/engine/kernels/linear/many_rows.h"

namespace {

// Tasks begin with a whole panel.
static_assert(ROUNDED_ROWS % quantised::BytePanels::ROWS == 0 && ROWS_OF_TASK % ROUNDED_ROWS == 0);

// The products of one phase, which share their inputs.
struct Products {
  const Product* all[MOST_INPUTS];
  int64_t num;
  bool is_joint;  // whether the same outputs of both are finished together
  const Buffer* from;
  int64_t num_rows, num_threads;
  bool is_rounded;  // whether they are computed as rounded_rows.h and byte_panels.h say

  bool has_codes() const {
    bool any = false;
    for (int64_t i = 0; i < num; i++) any |= all[i]->layout == QUANTISED;
    return any;
  }
  // Whether tasks are whole outputs of some rows: of so many rows that enough of them come together.
  bool are_whole() const {
    if (is_rounded) return true;
    if (num_rows < MANY_ROWS) return false;
    return num_rows > ROWS_OF_TASK || num_units() * ::num_chunks(num_rows) >= 4 * num_threads;
  }
  // Rows of one task: rounded ones become fewer until there are enough tasks, in multiples of what is computed.
  int64_t chunk_len() const {
    if (!is_rounded) return ::chunk_len(num_rows);
    const int64_t wanted = (4 * num_threads + num_units() - 1) / num_units();
    const int64_t chunks = most(::num_chunks(num_rows), wanted);
    return whole_rounded_rows((num_rows + chunks - 1) / chunks);
  }
  // What has to be computed for the outputs of one unit.
  int64_t num_pieces(int64_t i) const {
    return are_whole() ? (num_rows + chunk_len() - 1) / chunk_len() : all[i]->num_parts() * (is_joint ? 2 : 1);
  }
  int64_t num_units() const {
    int64_t total = 0;
    for (int64_t i = 0; i < (is_joint ? 1 : num); i++) total += all[i]->num_units(is_rounded);
    return total;
  }
  int64_t num_tasks() const {
    int64_t total = 0;
    for (int64_t i = 0; i < (is_joint ? 1 : num); i++) total += all[i]->num_units(is_rounded) * num_pieces(i);
    return total;
  }
};

// One task of a phase: a piece of some outputs of a product.
struct Place {
  int64_t product, column, first_piece, unit, piece;
};

INLINE Place place_of(const Products& products, int64_t task) {
  Place place = {0, 0, 0, 0, 0};
  for (;; place.product++) {
    const int64_t pieces = products.num_pieces(place.product);
    const int64_t tasks = products.all[place.product]->num_units(products.is_rounded) * pieces;
    if (task < tasks) {
      place.unit = task / pieces;
      place.piece = task % pieces;
      place.first_piece += place.unit * pieces;
      return place;
    }
    task -= tasks;
    place.first_piece += tasks;
    place.column += products.all[place.product]->num_outputs;
  }
}

// The outputs of one unit for rows from `first` on.
struct Outputs {
  int64_t unit, first, num_rows;
};

}  // namespace
