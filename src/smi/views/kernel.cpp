// Makes one view of each image of a batch, with the operations of pixels.py. It works image by image,
// so that an image stays in the processor's cache from cropping to normalising. compiled.py compiles
// this file on first use and checks the arguments. Pixels are floats between 0 and 1; a plane has
// [size * size] of them.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <thread>
#include <vector>

extern "C" {
struct Batch {
  const uint8_t* pixels;    // image i has [3, height, width] from start[i] on
  const int64_t* start;     // [n]
  const int64_t* shape;     // [n, 2]: height, width
  float* out;               // [n, size, size, 3], normalised; or null
  uint8_t* levels;          // [n, size, size, 3], whole grey levels, if out is null
  const float* box;         // [n, 4]: top, left, height, width
  const uint8_t* flip;      // [n]
  const uint8_t* jitter;    // [n]
  const int64_t* order;     // [n, 4]
  const float* factors;     // [n, 4]
  const uint8_t* gray;      // [n]
  const uint8_t* blur;      // [n]
  const float* sigma;       // [n]
  const uint8_t* solarize;  // [n]
  int64_t n, size, blur_kernel, bicubic, threads;
  float mean[3], std[3];
};
}

namespace {

enum { BRIGHTNESS, CONTRAST, SATURATION, HUE };
constexpr float RED = 0.2989f, GREEN = 0.587f, BLUE = 0.114f;
constexpr int WORD = 4;  // pixels that are read at once, if a resize needs few per column
constexpr int MAX_GROUPS = 4;  // words per column of a bicubic resize; a bilinear one has 1
// Floats that are summed at once. Planes and rows have this many spare floats after their end.
constexpr int BLOCK = 32;
// Taps below this share of a Gaussian's peak are left out: together less than a tenth of a grey level.
constexpr float NEGLIGIBLE = 1e-4f;

typedef float Vector __attribute__((vector_size(32), aligned(4), may_alias));

// Computes the sum over t of weight[t] * line(t)[i], for BLOCK values of i, in registers.
template <class Line>
inline void weigh(float* out, int taps, const float* weight, Line line) {
  Vector a = {}, b = {}, c = {}, d = {};
  for (int t = 0; t < taps; t++) {
    const Vector* source = reinterpret_cast<const Vector*>(line(t));
    a += weight[t] * source[0];
    b += weight[t] * source[1];
    c += weight[t] * source[2];
    d += weight[t] * source[3];
  }
  Vector* target = reinterpret_cast<Vector*>(out);
  target[0] = a, target[1] = b, target[2] = c, target[3] = d;
}

// Holds numbers at an address that is a multiple of ALIGNMENT. Compilers may round differently at
// other addresses (they treat the ends of a loop apart), and a view must not depend on the thread
// that makes it.
template <class T>
class Buffer {
 public:
  void resize(size_t size) {
    storage.resize(size + ALIGNMENT / sizeof(T));
    first = (T*)(((uintptr_t)storage.data() + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
  }
  void assign(size_t size, T value) {
    resize(size);
    std::fill(first, first + size, value);
  }
  T* data() { return first; }
  T& operator[](size_t i) { return first[i]; }
  const T& operator[](size_t i) const { return first[i]; }

 private:
  static constexpr uintptr_t ALIGNMENT = 64;  // bytes
  std::vector<T> storage;
  T* first = nullptr;
};

// Returns the weight of a pixel at a distance from the centre of an output. The unit is one pixel of
// the input, or of the output if that is coarser.
inline float triangle(float distance) { return std::max(0.0f, 1 - std::fabs(distance)); }
inline float cubic(float distance) {
  const float x = std::fabs(distance), a = -0.5f;
  return x < 1 ? ((a + 2) * x - (a + 3)) * x * x + 1 : x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0.0f;
}

// Holds the input pixels of each of `size` outputs of a line: `count[i]` pixels from start[i] on,
// with the weights weight[i * most + t].
struct Taps {
  int most = 0;
  std::vector<int> start, count;
  Buffer<float> weight;

  template <class Filter>
  void fill(float begin, float length, int pixels, int size, bool flip, float radius, Filter filter) {
    const float scale = length / size, unit = std::max(scale, 1.0f), support = radius * unit;
    const int low = std::floor(begin), high = std::ceil(begin + length);
    most = 2 * (int)std::ceil(support) + 1;
    start.assign(size, 0), count.assign(size, 0), weight.assign((size_t)size * most, 0.0f);
    for (int i = 0; i < size; i++) {
      const float center = begin + scale * (i + 0.5f);
      const int first = std::max(low, (int)std::floor(center - support + 0.5f));
      const int last = std::min({high, (int)std::floor(center + support + 0.5f), first + most});
      const int o = flip ? size - 1 - i : i;
      float* w = &weight[(size_t)o * most];
      float sum = 0;
      for (int j = first; j < last; j++) sum += filter((j + 0.5f - center) / unit);
      const int from = std::max(first, 0), to = std::min(last, pixels);  // pixels outside are black
      if (from >= to) continue;
      start[o] = from, count[o] = to - from;
      for (int j = from; j < to; j++) w[j - from] = filter((j + 0.5f - center) / unit) / sum;
    }
  }

  void fill(float begin, float length, int pixels, int size, bool flip, bool bicubic) {
    bicubic ? fill(begin, length, pixels, size, flip, 2.0f, cubic) : fill(begin, length, pixels, size, flip, 1.0f, triangle);
  }
};

struct Scratch {
  Taps rows, columns;
  Buffer<float> planes, line, middle, columns_by_tap, kernel;
  Buffer<uint8_t> bytes;
  Buffer<uint32_t> words;

  // Resizes a line with many pixels per column: adds them one by one.
  void shrink_line(float* out, int size) const {
    for (int i = 0; i < size; i++) {
      const float* w = &columns.weight[(size_t)i * columns.most];
      const uint8_t* source = &bytes[columns.start[i]];
      float sum = 0;
      for (int t = 0; t < columns.count[i]; t++) sum += w[t] * source[t];
      out[i] = sum * (1 / 255.0f);
    }
  }

  // Resizes a line with few pixels per column. Four of them are read as one word, so that many
  // columns are weighted at a time. A second group of four is added to the first, and so on.
  void resize_line(float* out, int size, int groups) {
    for (int group = 0; group < groups; group++) {
      const uint8_t* source = &bytes[group * WORD];
      for (int i = 0; i < size; i++) std::memcpy(&words[i], source + columns.start[i], WORD);
      const uint32_t* word = words.data();
      const float *w0 = &columns_by_tap[(size_t)group * WORD * size], *w1 = w0 + size, *w2 = w1 + size, *w3 = w2 + size;
      auto weighted = [&](int i) {
        return w0[i] * (int)(word[i] & 255) + w1[i] * (int)(word[i] >> 8 & 255) + w2[i] * (int)(word[i] >> 16 & 255) +
               w3[i] * (int)(word[i] >> 24);
      };
      if (group == 0) {
        for (int i = 0; i < size; i++) out[i] = weighted(i);
      } else {
        for (int i = 0; i < size; i++) out[i] += weighted(i);
      }
    }
  }

  void resized_crop(const Batch& b, int64_t n) {
    const int size = b.size, height = b.shape[2 * n], width = b.shape[2 * n + 1];
    const float* box = b.box + 4 * n;
    rows.fill(box[0], box[2], height, size, false, b.bicubic);
    columns.fill(box[1], box[3], width, size, b.flip[n], b.bicubic);
    const int taps = *std::max_element(columns.count.begin(), columns.count.end());
    const int groups = std::max(1, (taps + WORD - 1) / WORD);  // a crop of the padding has no taps
    const bool by_words = groups <= (b.bicubic ? MAX_GROUPS : 1);
    if (by_words) {
      columns_by_tap.assign((size_t)groups * WORD * size, 0.0f);
      for (int i = 0; i < size; i++) {
        for (int t = 0; t < columns.count[i]; t++) {
          columns_by_tap[(size_t)t * size + i] = columns.weight[(size_t)i * columns.most + t] * (1 / 255.0f);
        }
      }
    }
    const int top = std::max(0, (int)std::floor(box[0])), bottom = std::min(height, (int)std::ceil(box[0] + box[2]));
    middle.resize((size_t)std::max(0, bottom - top) * size + BLOCK);
    words.resize(size);
    bytes.assign(width + MAX_GROUPS * WORD, 0);
    for (int c = 0; c < 3; c++) {
      for (int y = top; y < bottom; y++) {
        std::memcpy(bytes.data(), b.pixels + b.start[n] + ((int64_t)c * height + y) * width, width);
        float* out = &middle[(size_t)(y - top) * size];
        by_words ? resize_line(out, size, groups) : shrink_line(out, size);
      }
      for (int i = 0; i < size; i++) {
        const float* source = middle.data() + (std::ptrdiff_t)(rows.start[i] - top) * size;
        for (int x = 0; x < size; x += BLOCK) {
          weigh(plane(c) + (size_t)i * size + x, rows.count[i], &rows.weight[(size_t)i * rows.most],
                [&](int t) { return source + (size_t)t * size + x; });
        }
      }
      if (b.bicubic) {  // its negative weights go beyond black and white
        float* x = plane(c);
        for (size_t i = 0; i < area; i++) x[i] = std::min(std::max(x[i], 0.0f), 1.0f);
      }
    }
  }

  // Three planes and a fourth to blur into, each with BLOCK spare floats after its end.
  size_t area = 0;
  float* plane(int c) { return planes.data() + c * (area + BLOCK); }

  void blend(int kind, float factor) {
    float *r = plane(0), *g = plane(1), *b = plane(2);
    const float rest = 1 - factor, own = kind == SATURATION ? rest : 0.0f;
    float fixed = 0;
    if (kind == CONTRAST) {
      float sum = 0;
      for (size_t i = 0; i < area; i++) sum += RED * r[i] + GREEN * g[i] + BLUE * b[i];
      fixed = rest * sum / area;
    }
    for (size_t i = 0; i < area; i++) {
      const float level = own * (RED * r[i] + GREEN * g[i] + BLUE * b[i]) + fixed;
      r[i] = std::min(std::max(factor * r[i] + level, 0.0f), 1.0f);
      g[i] = std::min(std::max(factor * g[i] + level, 0.0f), 1.0f);
      b[i] = std::min(std::max(factor * b[i] + level, 0.0f), 1.0f);
    }
  }

  void shift_hue(float shift) {
    float *red = plane(0), *green = plane(1), *blue = plane(2);
    for (size_t i = 0; i < area; i++) {
      const float r = red[i], g = green[i], b = blue[i];
      const float value = std::max(r, std::max(g, b)), chroma = value - std::min(r, std::min(g, b));
      const float inverse = 1 / (chroma == 0 ? 1.0f : chroma);
      float hue = value == r ? (g - b) * inverse : value == g ? (b - r) * inverse + 2 : (r - g) * inverse + 4;
      hue += 6 * shift;
      hue = hue < 0 ? hue + 6 : hue;
      hue = hue >= 6 ? hue - 6 : hue;
      const float k5 = hue + 5 >= 6 ? hue - 1 : hue + 5, k3 = hue + 3 >= 6 ? hue - 3 : hue + 3, k1 = hue + 1 >= 6 ? hue - 5 : hue + 1;
      red[i] = value - chroma * std::min(std::max(std::min(k5, 4 - k5), 0.0f), 1.0f);
      green[i] = value - chroma * std::min(std::max(std::min(k3, 4 - k3), 0.0f), 1.0f);
      blue[i] = value - chroma * std::min(std::max(std::min(k1, 4 - k1), 0.0f), 1.0f);
    }
  }

  void to_gray() {
    float *r = plane(0), *g = plane(1), *b = plane(2);
    for (size_t i = 0; i < area; i++) r[i] = RED * r[i] + GREEN * g[i] + BLUE * b[i];
  }

  void gaussian_blur(int c, int size, float sigma, int blur_kernel) {
    int radius = 0;
    while (radius < blur_kernel / 2 && std::exp(-0.5f * (radius + 1) * (radius + 1) / (sigma * sigma)) > NEGLIGIBLE) radius++;
    if (radius == 0) return;
    kernel.resize(2 * radius + 1);
    float sum = 0;
    for (int t = -radius; t <= radius; t++) sum += kernel[t + radius] = std::exp(-0.5f * t * t / (sigma * sigma));
    for (int t = 0; t <= 2 * radius; t++) kernel[t] /= sum;
    line.resize(size + 2 * radius + BLOCK);
    float *source = plane(c), *blurred = plane(3);
    for (int y = 0; y < size; y++) {
      const float* row = source + (size_t)y * size;
      std::memcpy(&line[radius], row, size * sizeof(float));
      for (int t = 1; t <= radius; t++) line[radius - t] = row[t], line[radius + size - 1 + t] = row[size - 1 - t];
      for (int x = 0; x < size; x += BLOCK) {
        weigh(blurred + (size_t)y * size + x, 2 * radius + 1, kernel.data(), [&](int t) { return &line[x + t]; });
      }
    }
    for (int y = 0; y < size; y++) {
      for (int x = 0; x < size; x += BLOCK) {
        weigh(source + (size_t)y * size + x, 2 * radius + 1, kernel.data(), [&](int t) {
          int reflected = std::abs(y + t - radius);
          if (reflected >= size) reflected = 2 * size - 2 - reflected;
          return blurred + (size_t)reflected * size + x;
        });
      }
    }
  }

  void make_view(const Batch& b, int64_t n) {
    resized_crop(b, n);
    if (b.jitter[n]) {
      for (int turn = 0; turn < 4; turn++) {
        const int kind = b.order[4 * n + turn];
        const float factor = b.factors[4 * n + kind];
        if (kind != HUE && factor != 1) blend(kind, factor);
        if (kind == HUE && factor != 0) shift_hue(factor);
      }
    }
    if (b.gray[n]) to_gray();
    const int channels = b.gray[n] ? 1 : 3;
    for (int c = 0; c < channels; c++) {
      if (b.blur[n]) gaussian_blur(c, b.size, b.sigma[n], b.blur_kernel);
      if (b.solarize[n]) solarize(plane(c));
    }
    const float *red = plane(0), *green = plane(channels == 1 ? 0 : 1), *blue = plane(channels == 1 ? 0 : 2);
    b.out ? normalise(b, b.out + n * 3 * area, red, green, blue) : round_levels(b.levels + n * 3 * area, red, green, blue);
  }

  void solarize(float* x) const {
    for (size_t i = 0; i < area; i++) x[i] = x[i] >= 0.5f ? 1 - x[i] : x[i];
  }

  // Writes the channels of a pixel side by side, as networks read them fastest.
  void normalise(const Batch& b, float* out, const float* red, const float* green, const float* blue) const {
    const float mean0 = b.mean[0], mean1 = b.mean[1], mean2 = b.mean[2];
    const float scale0 = 1 / b.std[0], scale1 = 1 / b.std[1], scale2 = 1 / b.std[2];
    for (size_t i = 0; i < area; i++) {
      out[3 * i] = (red[i] - mean0) * scale0;
      out[3 * i + 1] = (green[i] - mean1) * scale1;
      out[3 * i + 2] = (blue[i] - mean2) * scale2;
    }
  }

  void round_levels(uint8_t* out, const float* red, const float* green, const float* blue) const {
    auto level = [](float x) { return (uint8_t)(int)(std::min(std::max(x, 0.0f), 1.0f) * 255 + 0.5f); };
    for (size_t i = 0; i < area; i++) {
      out[3 * i] = level(red[i]);
      out[3 * i + 1] = level(green[i]);
      out[3 * i + 2] = level(blue[i]);
    }
  }
};

}  // namespace

// Returns 0, or 1 if there was not enough memory.
extern "C" int smi_make_views(const Batch* batch) {
  std::atomic<int64_t> next{0};
  std::atomic<int> failed{0};
  auto work = [&] {
    try {
      Scratch scratch;
      scratch.area = (size_t)batch->size * batch->size;
      scratch.planes.resize(4 * (scratch.area + BLOCK));
      for (int64_t n; (n = next++) < batch->n;) scratch.make_view(*batch, n);
    } catch (...) {
      failed = 1;
    }
  };
  std::vector<std::thread> others;
  try {
    for (int64_t i = 1; i < std::min(batch->threads, batch->n); i++) others.emplace_back(work);
  } catch (...) {  // continue with fewer threads
  }
  work();
  for (std::thread& thread : others) thread.join();
  return failed;
}
