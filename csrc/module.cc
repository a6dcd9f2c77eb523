// The extension module _core: the CPU backend, and the tables of the compiled code that Python needs.
#include <nanobind/nanobind.h>

#include "catalogue.h"
#include "cpu/walk.h"
#include "gpu/limits.h"
#include "gpu/vendor_tiles.h"
#include "handlers/handlers.h"
#include "layouts.h"
#include "ragged.h"

namespace nb = nanobind;

namespace {

// The arithmetics for which a vendor's build has code for a tile, each with the K step of its kernel.
nb::dict KSteps(const vbgemm::TileShape& tile, bool cdna) {
  nb::dict steps;
  for (int i = 0; i < vbgemm::kKinds; ++i) {
    const vbgemm::Arithmetic& one = vbgemm::kArithmetics[i];
    if (vbgemm::has_code(tile, static_cast<vbgemm::Kind>(i), cdna)) steps[one.name] = vbgemm::k_step(tile, bytes_of(one.lhs), cdna);
  }
  return steps;
}

nb::list Tiles() {
  nb::list tiles;
  for (const vbgemm::TileShape& tile : vbgemm::kTiles) {
    nb::list kinds;
    for (int i = 0; i < vbgemm::kKinds; ++i) {
      if (tile.built_for(static_cast<vbgemm::Kind>(i))) kinds.append(vbgemm::kArithmetics[i].name);
    }
    const char* kernel = tile.is_gpu() ? vbgemm::kKernelNames[static_cast<int>(vbgemm::kernel_of(tile))] : "cpu";
    nb::dict k_steps;
    k_steps["cuda"] = KSteps(tile, /*cdna=*/false);
    k_steps["rocm"] = KSteps(tile, /*cdna=*/true);
    tiles.append(nb::make_tuple(tile.name, tile.m, tile.n, tile.k, tile.threads, nb::tuple(kinds), kernel, tile.tensor,
                                vbgemm::kThreadPartitionNames[static_cast<int>(tile.partition)], vbgemm::stores_mirrored(tile),
                                vbgemm::is_far_longer(tile), k_steps));
  }
  return tiles;
}

nb::list DTypes() {
  nb::list dtypes;
  for (int i = 0; i < vbgemm::kDTypes; ++i) {
    const vbgemm::DTypeInfo& info = vbgemm::info_of(static_cast<vbgemm::DType>(i));
    nb::list results;
    for (int result = 0; result < vbgemm::kDTypes; ++result) {
      if (info.results >> result & 1) results.append(name_of(static_cast<vbgemm::DType>(result)));
    }
    dtypes.append(nb::make_tuple(info.name, info.bytes, name_of(info.accumulator), info.fraction_bits, nb::tuple(results)));
  }
  return dtypes;
}

nb::list Arithmetics() {
  nb::list arithmetics;
  for (const vbgemm::Arithmetic& one : vbgemm::kArithmetics)
    arithmetics.append(nb::make_tuple(one.name, name_of(one.lhs), name_of(one.rhs)));
  return arithmetics;
}

nb::dict Layouts() {
  nb::dict layouts;
  for (const vbgemm::RecordLayout& layout : vbgemm::kLayouts) {
    nb::list fields;
    for (int i = 0; i < layout.num_fields; ++i) {
      const vbgemm::Field& field = layout.fields[i];
      fields.append(nb::make_tuple(field.name, field.type, field.count, field.offset));
    }
    layouts[layout.name] = nb::make_tuple(layout.bytes, fields);
  }
  return layouts;
}

// The operand's shape as a tuple of size names, such as ('m', 'k'); None for an absent operand.
nb::object ShapeOf(const vbgemm::OperandShape& shape) {
  if (shape.rank < 0) return nb::none();
  nb::list names;
  for (int i = 0; i < shape.rank; ++i) names.append(vbgemm::kRaggedSizeNames[static_cast<int>(shape.sizes[i])]);
  return nb::tuple(names);
}

nb::list RaggedOperands() {
  nb::list operands;
  for (const vbgemm::RaggedOperandInfo& one : vbgemm::ragged_table::kTable) {
    nb::list kernels;
    for (int i = 0; i < 3; ++i) {
      if (one.kernels >> i & 1) kernels.append(vbgemm::kRaggedKernelNames[i]);
    }
    operands.append(nb::make_tuple(one.name, vbgemm::kRaggedTypeNames[static_cast<int>(one.type)], nb::tuple(kernels), ShapeOf(one.rows),
                                   ShapeOf(one.contraction)));
  }
  return operands;
}

nb::list RaggedShapes() {
  nb::list shapes;
  for (const vbgemm::RaggedShapeInfo& one : vbgemm::kRaggedShapeTable) shapes.append(nb::make_tuple(one.name, one.columns, one.cluster));
  return shapes;
}

template <size_t N>
nb::list Names(const char* const (&names)[N]) {
  nb::list list;
  for (const char* name : names) list.append(name);
  return list;
}

}  // namespace

NB_MODULE(_core, m) {
  m.doc() = "The CPU backend of jax_vbgemm, and what Python needs to know of the compiled code.";
  m.def("tiles", &Tiles,
        "The catalogue's tiles, in order: (name, m, n, k, threads, arithmetics, kernel, on tensor cores, what a thread owns, can store its "
        "transpose, one side is at least four times the other, {platform: {arithmetic that has code there: its kernel's K step}}).");
  m.def("kernels", [] { return Names(vbgemm::kKernelNames); }, "The launched GPU kernels, in the order of their numbers.");
  m.def(
      "aligned_kernels",
      [] {
        nb::list list;
        for (int kernel = 0; kernel < vbgemm::kKernels; ++kernel) {
          const int row = vbgemm::kAlignedRows[kernel];
          if (row >= 0) list.append(nb::make_tuple(vbgemm::kKernelNames[kernel], row));
        }
        return list;
      },
      "The kernels for aligned rows: (name, row of the catalogue).");
  m.def("activations", [] { return Names(vbgemm::kActivationNames); }, "The activations of epilogues, in the order of their numbers.");
  m.def("layouts", &Layouts, "The records of a call's descriptors: {name: (bytes, [(field, type, count, offset)])}.");
  m.attr("STORE_TO_WORKSPACE") = vbgemm::kStoreToWorkspace;
  m.attr("KEEP_ACCUMULATORS") = vbgemm::kKeepAccumulators;
  m.attr("VECTOR_LOAD_BYTES") = vbgemm::kVectorLoadBytes;
  m.attr("ARRAY_CHUNK_BYTES") = vbgemm::kArrayChunkBytes;
  m.def("gpu_workspace_bytes", &vbgemm::gpu_workspace_bytes, nb::arg("cdna"), nb::arg("num_buffers"), nb::arg("sum_bytes"),
        nb::arg("pipelined"), "The size of a call's workspace on a GPU.");
  m.attr("RAGGED_COUNTER_BYTES") = vbgemm::kRaggedCounterBytes;
  m.attr("RAGGED_MOST_SIZE") = vbgemm::kRaggedMostSize;
  m.attr("RAGGED_MOST_TILES") = vbgemm::kRaggedMostTiles;
  m.def("dtypes", &DTypes,
        "The element types: (name, bytes, accumulator, fraction bits, types to which sums of its products may be rounded).");
  m.def("arithmetics", &Arithmetics, "The arithmetics, in the order of their numbers: (name, left operand's type, right operand's type).");
  m.def("catalogue_hash", &vbgemm::catalogue_hash, "Identifies the catalogue; travels with every call.");
  m.def("ragged_operands", &RaggedOperands,
        "The operands of ragged products, in order, and their result: (name, type, kernels that have it, shape in ragged rows, shape in a "
        "ragged contraction).");
  m.attr("RAGGED_REQUIRED") = vbgemm::kRaggedRequired;
  m.def("ragged_halves", [] { return Names(vbgemm::kRaggedHalvesNames); }, "What of a ragged product comes in halves, by number.");
  static_assert(vbgemm::kScaledDepth == vbgemm::kScaledColumns);
  m.attr("RAGGED_SCALED") = vbgemm::kScaledDepth;
  m.def(
      "ragged_half_elements", [](int kind) { return vbgemm::ragged_half_elements(static_cast<vbgemm::Kind>(kind)); }, nb::arg("kind"),
      "Of how many elements the halves of a ragged product that is not gated must be multiples.");
  m.def("ragged_shapes", &RaggedShapes, "A GPU's tile shapes of ragged products, by number: (name, columns, thread blocks of a cluster).");
  m.def(
      "has_ragged_pipeline",
      [](int kind, int rhs, bool contraction, bool transpose_rhs, bool gathers, int shape) {
        return vbgemm::has_ragged_pipeline(static_cast<vbgemm::Kind>(kind), static_cast<vbgemm::DType>(rhs), contraction, transpose_rhs,
                                           gathers, static_cast<vbgemm::RaggedShape>(shape));
      },
      nb::arg("kind"), nb::arg("rhs"), nb::arg("contraction"), nb::arg("transpose_rhs"), nb::arg("gathers"), nb::arg("shape"),
      "Whether GPUs with TMA have a pipelined kernel of ragged products of an arithmetic, a dtype of rhs and a shape, by their numbers, "
      "and of a "
      "layout.");
  m.def(
      "ragged_line_elements", [](int kind) { return vbgemm::pipelined_line_elements(static_cast<vbgemm::Kind>(kind)); }, nb::arg("kind"),
      "Of how many elements the lines of operands and results of a pipelined kernel of ragged products must be multiples.");
  m.def(
      "ragged_list",
      [](int64_t m, int64_t k, int64_t columns, int64_t groups, int64_t total_groups, bool contraction, int tile) {
        vbgemm::RaggedCall call{};
        call.m = m, call.k = k, call.n = columns, call.groups = groups, call.total_groups = total_groups, call.contraction = contraction;
        const vbgemm::TileShape& shape = vbgemm::kTiles[tile];
        return nb::make_tuple(vbgemm::max_tiles(call, shape.m, shape.n), vbgemm::ragged_list_bytes(call, shape));
      },
      nb::arg("m"), nb::arg("k"), nb::arg("columns"), nb::arg("groups"), nb::arg("total_groups"), nb::arg("contraction"), nb::arg("tile"),
      "The length of the list of tiles by which a GPU computes a ragged product, and its size in bytes.");
  m.def("isa", &vbgemm::isa, "The instruction set the CPU kernel uses on this machine.");
  m.def("handler", [] { return nb::capsule(reinterpret_cast<void*>(&vbgemm_matmul)); }, "The XLA FFI handler.");
  m.def(
      "ragged_handler", [] { return nb::capsule(reinterpret_cast<void*>(&vbgemm_ragged)); },
      "The XLA FFI handler of ragged products (rows in groups of runtime sizes).");
}
