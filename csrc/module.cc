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
      if (tile.built_for(static_cast<vbgemm::Kind>(i))) kinds.append(vbgemm::kKindNames[i]);
    }
    const char* kernel = tile.is_gpu() ? vbgemm::kKernelNames[static_cast<int>(vbgemm::kernel_of(tile))] : "cpu";
    tiles.append(nb::make_tuple(tile.name, tile.m, tile.n, tile.k, tile.threads, nb::tuple(kinds), kernel, tile.tensor));
  }
  return tiles;
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
  m.def(
      "kinds",
      [] {
        nb::list names;
        for (const char* name : vbgemm::kKindNames) names.append(name);
        return names;
      },
      "The kinds of arithmetic, in the order of their numbers.");
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
