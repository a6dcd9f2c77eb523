// The kernels that list the tiles of ragged products.
#include "gpu/ragged/packed_list.h"
#include "gpu/ragged/tile_list.h"

extern "C" __global__ void VBGEMM_LAUNCH_BOUNDS(vbgemm::kWaveSize, 16)
    vbgemm_tile_list(VBGEMM_PARAMETERS(vbgemm::TileListParameters, parameters)) {
  VBGEMM_READ_PARAMETERS(vbgemm::TileListParameters, parameters);
  vbgemm::write_tile_list(parameters);
}

extern "C" __global__ void VBGEMM_LAUNCH_BOUNDS(vbgemm::kWaveSize, 16)
    vbgemm_packed_list(VBGEMM_PARAMETERS(vbgemm::PackedListParameters, parameters)) {
  VBGEMM_READ_PARAMETERS(vbgemm::PackedListParameters, parameters);
  vbgemm::write_packed_list(parameters);
}
