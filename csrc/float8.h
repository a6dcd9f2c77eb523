// Floating-point numbers of 8 bits to and from float32, for any split of the bits between exponent and fraction, as dtypes.def has it.
//
// A file to include where it is needed, in a namespace and with the qualifiers of functions (VBGEMM_FLOAT8) of its own: the CPU's copies
// are each compiled for one instruction set. The functions take and give bits of float32; `bits_of` and `float_of` reinterpret. Neither
// reads nor makes a subnormal float32, so that it does not matter whether the thread flushes them to zero.

template <DType kDType>
struct Float8Format {
  static constexpr int kExponent = info_of(kDType).exponent_bits, kFraction = info_of(kDType).fraction_bits;
  static constexpr bool kInfinities = info_of(kDType).has_infinities;
  static constexpr int kBias = (1 << (kExponent - 1)) - 1, kDropped = 23 - kFraction;
  static constexpr uint32_t kRebias = static_cast<uint32_t>(127 - kBias) << 23;
  static constexpr uint32_t kInfinity = kInfinities ? ((1u << kExponent) - 1) << kFraction : 0x7f;  // or NaN, if none
  static_assert(kExponent + kFraction == 7);

  // Words: uint32_t, or a vector of them.
  template <class Words, class BitsOf, class FloatOf>
  VBGEMM_FLOAT8 static Words widen(Words bits, const BitsOf& bits_of, const FloatOf& float_of) {
    const Words magnitude = bits & 0x7fu, sign = (bits & 0x80u) << 24, shifted = (magnitude << kDropped) + kRebias;
    // A subnormal's fraction behind a leading 1, which is then taken away.
    const Words one = Words{} + (kRebias + (1u << 23));
    const Words subnormal = bits_of(float_of(shifted + (1u << 23)) - float_of(one));
    const Words number = magnitude < (1u << kFraction) ? subnormal : shifted;
    const Words special = kInfinities ? shifted | 0x7f800000u : Words{} + 0x7fc00000u;
    return (magnitude < kInfinity ? number : special) | sign;
  }

  // To nearest, ties to even; what is too large becomes infinity, or NaN where there is none.
  template <class BitsOf, class FloatOf>
  VBGEMM_FLOAT8 static uint8_t narrow(uint32_t bits, const BitsOf& bits_of, const FloatOf& float_of) {
    constexpr uint32_t kSmallestNormal = kRebias + (1u << 23), kUnit = kSmallestNormal + (static_cast<uint32_t>(kDropped) << 23);
    const uint32_t magnitude = bits & 0x7fffffff, sign = bits >> 24 & 0x80;
    uint32_t rounded = ((magnitude + ((1u << (kDropped - 1)) - 1) + (magnitude >> kDropped & 1)) - kRebias) >> kDropped;
    // The spacing of kUnit's neighbours is that of subnormals: the addition rounds.
    if (magnitude < kSmallestNormal) rounded = bits_of(float_of(magnitude) + float_of(kUnit)) - kUnit;
    if (magnitude >= 0x7f800000 || rounded > kInfinity) rounded = kInfinity;
    if (magnitude > 0x7f800000) rounded = 0x7f - (kInfinities ? (1u << (kFraction - 1)) - 1 : 0);
    return static_cast<uint8_t>(sign | rounded);
  }
};
