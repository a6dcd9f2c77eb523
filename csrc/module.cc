// The extension module _core: the compiled tile catalogue and the CPU backend.
#include <nanobind/nanobind.h>

#include "catalogue.h"
#include "cpu/handler.h"
#include "cpu/walk.h"

namespace nb = nanobind;

namespace {

nb::list Tiles() {
  nb::list tiles;
  for (const vbgemm::TileShape& tile : vbgemm::kTiles) {
    nb::list kinds;
    for (int i = 0; i < vbgemm::kKinds; ++i) {
      if (tile.built_for(static_cast<vbgemm::Kind>(i))) kinds.append(vbgemm::kArithmetics[i].name);
    }
    const char* kernel = tile.is_gpu() ? vbgemm::kKernelNames[static_cast<int>(vbgemm::kernel_of(tile))] : "cpu";
    tiles.append(nb::make_tuple(tile.name, tile.m, tile.n, tile.k, tile.threads, nb::tuple(kinds), kernel, tile.tensor));
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

}  // namespace

NB_MODULE(_core, m) {
  m.doc() = "The tile catalogue and the CPU backend of jax_vbgemm.";
  m.def("tiles", &Tiles, "The catalogue: (name, m, n, k, threads, kinds, kernel, tensor) a tile, in the order of its rows.");
  m.def(
      "kernels",
      [] {
        nb::list names;
        for (const char* name : vbgemm::kKernelNames) names.append(name);
        return names;
      },
      "The launched GPU kernels, in the order of their numbers.");
  m.def("dtypes", &DTypes, "The element types: (name, bytes, accumulator, fraction bits, types that sums of its products are rounded to).");
  m.def("arithmetics", &Arithmetics,
        "The kinds of arithmetic, in the order of their numbers: (name, left operand's type, right operand's).");
  m.def("catalogue_hash", &vbgemm::catalogue_hash, "Identifies the catalogue; travels with every call.");
  m.def("isa", &vbgemm::isa, "The instruction set the CPU kernel uses on this machine.");
  m.def("handler", [] { return nb::capsule(reinterpret_cast<void*>(&vbgemm_cpu_matmul)); }, "The XLA FFI handler.");
  m.def(
      "ragged_handler", [] { return nb::capsule(reinterpret_cast<void*>(&vbgemm_cpu_ragged)); },
      "The XLA FFI handler of products whose group sizes are data.");
  m.def(
      "ragged_lists_handler", [] { return nb::capsule(reinterpret_cast<void*>(&vbgemm_cpu_packed)); },
      "The XLA FFI handler of packed rows times weights of different shapes.");
}
