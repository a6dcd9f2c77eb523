// CUTLASS's grouped kernel of Hopper: tiles by TMA, whose descriptors thread blocks rewrite as they come to another product, and warpgroup
// products of two tiles in turn ("ping-pong"). Rows must begin at multiples of 16 bytes.
#pragma once
#include "cute/tensor.hpp"
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/gemm/collective/collective_builder.hpp"
#include "cutlass/gemm/device/gemm_universal_adapter.h"
#include "cutlass/gemm/group_array_problem_shape.hpp"
#include "cutlass/gemm/kernel/gemm_universal.hpp"
#include "cutlass/util/packed_stride.hpp"
#include "cutlass_list.h"

namespace vbgemm::driver {

template <class Tile>
struct PointerArray {
  using Element = cutlass::bfloat16_t;
  using RowMajor = cutlass::layout::RowMajor;
  using Arch = cutlass::arch::Sm90;
  using TensorOp = cutlass::arch::OpClassTensorOp;
  using Cluster = cute::Shape<cute::_1, cute::_1, cute::_1>;
  static constexpr int kAlignment = 8;
  using Size = cute::Shape<int, int, int>;
  using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      Arch, TensorOp, Tile, Cluster, cutlass::epilogue::collective::EpilogueTileAuto, float, float, Element, RowMajor*, kAlignment, Element,
      RowMajor*, kAlignment, cutlass::epilogue::PtrArrayTmaWarpSpecializedPingpong,
      cutlass::epilogue::fusion::LinearCombination<Element, float>>::CollectiveOp;
  using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      Arch, TensorOp, Element, RowMajor*, kAlignment, Element, RowMajor*, kAlignment, float, Tile, Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename Epilogue::SharedStorage))>,
      cutlass::gemm::KernelPtrArrayTmaWarpSpecializedPingpong>::CollectiveOp;
  using Kernel = cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape<Size>, Mainloop, Epilogue>;
  using Device = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;

  static bool time(const List<BFloat16>& list, const BenchmarkOptions& options) {
    std::vector<Size> sizes;
    std::vector<typename Kernel::InternalStrideA> a;
    std::vector<typename Kernel::InternalStrideB> b;
    std::vector<typename Kernel::InternalStrideD> c;
    for (const Problem& p : list.workload.problems) {
      sizes.push_back({p.m, p.n, p.k});
      a.push_back(cutlass::make_cute_packed_stride(typename Kernel::InternalStrideA{}, {p.m, p.k, 1}));
      b.push_back(cutlass::make_cute_packed_stride(typename Kernel::InternalStrideB{}, {p.n, p.k, 1}));
      c.push_back(cutlass::make_cute_packed_stride(typename Kernel::InternalStrideD{}, {p.m, p.n, 1}));
    }
    const DeviceMemory device_sizes(sizes), device_a(a), device_b(b), device_c(c);
    const auto on_device = [](const DeviceMemory& memory, const auto& items) {
      return reinterpret_cast<typename std::decay_t<decltype(items)>::value_type*>(memory.data());
    };
    const auto hardware = cutlass::KernelHardwareInfo::make_kernel_hardware_info<Kernel>(0);
    std::vector<Device> calls(list.copies.count());
    std::vector<DeviceMemory> workspace;
    for (int copy = 0; copy < list.copies.count(); ++copy) {
      const auto pointers = [&](int operand) { return reinterpret_cast<Element**>(list.pointers(copy, operand)); };
      typename Device::Arguments arguments{cutlass::gemm::GemmUniversalMode::kGrouped,
                                           {list.count(), on_device(device_sizes, sizes), sizes.data()},
                                           {const_cast<const Element**>(pointers(0)), on_device(device_a, a),
                                            const_cast<const Element**>(pointers(1)), on_device(device_b, b)},
                                           {{}, nullptr, on_device(device_c, c), pointers(2), on_device(device_c, c)},
                                           hardware};
      arguments.epilogue.thread.alpha = 1, arguments.epilogue.thread.beta = 0;
      if (workspace.empty()) workspace.emplace_back(Device::get_workspace_size(arguments));  // calls follow each other
      if (calls[copy].initialize(arguments, workspace[0].data()) != cutlass::Status::kSuccess) return false;
    }
    require(cudaDeviceSynchronize(), "initialize");
    const std::string name = "cutlass_sm90ptr_bf16_" + std::to_string(cute::size<0>(Tile{})) + "x" + std::to_string(cute::size<1>(Tile{}));
    return list.time(name + "_pingpong", options, "", [&](int copy) {
      if (calls[copy].run(list.stream.get()) != cutlass::Status::kSuccess) require(cudaErrorLaunchFailure, "launch");
    });
  }
};

}  // namespace vbgemm::driver
