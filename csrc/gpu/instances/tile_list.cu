// The kernel that lists the tiles of ragged products.
#include "gpu/ragged/tile_list.h"

extern "C" __global__ void VBGEMM_LAUNCH_BOUNDS(vbgemm::kWaveSize, 16)
    vbgemm_tile_list(VBGEMM_PARAMETERS(vbgemm::TileListParameters, parameters)) {
  VBGEMM_READ_PARAMETERS(vbgemm::TileListParameters, parameters);
  vbgemm::write_tile_list(parameters);
}
