// Conversion of 8-bit floating-point numbers to and from float32, for any split of the bits between exponent and fraction that dtypes.def
// declares.
//
// The includer chooses the namespace and the functions' qualifiers (VBGEMM_FLOAT8), because each copy on the CPU is compiled for one
// instruction set. The functions take and return the bits of a float32; `bits_of` and `float_of` reinterpret them. No subnormal float32 is
// read or produced, so that the thread's flush-to-zero mode does not matter.

template <DType kDType>
struct Float8Format {
  static constexpr int kExponent = info_of(kDType).exponent_bits, kFraction = info_of(kDType).fraction_bits;
  static constexpr bool kInfinities = info_of(kDType).has_infinities;
  static constexpr int kBias = (1 << (kExponent - 1)) - 1, kDroppedBits = 23 - kFraction;
  static constexpr uint32_t kRebias = static_cast<uint32_t>(127 - kBias) << 23;
  // The bits of infinity, or of NaN if the type has no infinity.
  static constexpr uint32_t kInfinity = kInfinities ? ((1u << kExponent) - 1) << kFraction : 0x7f;
  static_assert(kExponent + kFraction == 7);

  // Words: uint32_t, or a vector of them.
  template <class Words, class BitsOf, class FloatOf>
  VBGEMM_FLOAT8 static Words widen(Words bits, const BitsOf& bits_of, const FloatOf& float_of) {
    const Words magnitude = bits & 0x7fu, sign = (bits & 0x80u) << 24, shifted = (magnitude << kDroppedBits) + kRebias;
    // Subnormal: reads the fraction with a leading 1, which is then subtracted.
    const Words one = Words{} + (kRebias + (1u << 23));
    const Words subnormal = bits_of(float_of(shifted + (1u << 23)) - float_of(one));
    const Words number = magnitude < (1u << kFraction) ? subnormal : shifted;
    const Words special = kInfinities ? shifted | 0x7f800000u : Words{} + 0x7fc00000u;
    return (magnitude < kInfinity ? number : special) | sign;
  }

  // Rounds to nearest, ties to even. Values that are too large become infinity, or NaN if the type has no infinity.
  template <class BitsOf, class FloatOf>
  VBGEMM_FLOAT8 static uint8_t narrow(uint32_t bits, const BitsOf& bits_of, const FloatOf& float_of) {
    constexpr uint32_t kSmallestNormal = kRebias + (1u << 23), kUnit = kSmallestNormal + (static_cast<uint32_t>(kDroppedBits) << 23);
    const uint32_t magnitude = bits & 0x7fffffff, sign = bits >> 24 & 0x80;
    uint32_t rounded = ((magnitude + ((1u << (kDroppedBits - 1)) - 1) + (magnitude >> kDroppedBits & 1)) - kRebias) >> kDroppedBits;
    // The spacing of float32 numbers near kUnit is that of the type's subnormals, so that the addition rounds.
    if (magnitude < kSmallestNormal) rounded = bits_of(float_of(magnitude) + float_of(kUnit)) - kUnit;
    if (magnitude >= 0x7f800000 || rounded > kInfinity) rounded = kInfinity;
    if (magnitude > 0x7f800000) rounded = 0x7f - (kInfinities ? (1u << (kFraction - 1)) - 1 : 0);
    return static_cast<uint8_t>(sign | rounded);
  }
};
