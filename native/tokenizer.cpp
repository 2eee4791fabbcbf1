#include "tokenizer.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <utility>

#include "errors.hpp"
#include "parallel.hpp"
#include "tokenizer_split.hpp"

namespace lightir {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "WordCache::key takes a word's bytes from the low end");

constexpr size_t texts_chunk = 256;        // texts per task
constexpr size_t cache_entries = 1 << 16;  // of 64 bytes
constexpr size_t key_bytes = 24;           // bytes read from the start of a word; the text needs this much padding
constexpr uint64_t no_pair = std::numeric_limits<uint64_t>::max();
constexpr uint32_t no_rank = std::numeric_limits<uint32_t>::max();

uint64_t mix(uint64_t x) {
    x ^= x >> 32;
    x *= 0x9e3779b97f4a7c15ull;  // 2 ** 64 / golden ratio (Knuth 6.4)
    return x ^ (x >> 29);
}

uint64_t pair_of(uint32_t left, uint32_t right) { return static_cast<uint64_t>(left) << 32 | right; }

size_t longest(const std::unordered_map<std::string, uint32_t>& pieces) {
    size_t bytes = 0;
    for (const auto& [piece, id] : pieces) bytes = std::max(bytes, piece.size());
    return bytes;
}

// Python's str.isspace for ASCII.
bool is_stripped(char c) { return is_white(c) || (c >= 0x1c && c <= 0x1f); }

std::string_view strip(std::string_view text) {
    while (!text.empty() && is_stripped(text.front())) text.remove_prefix(1);
    while (!text.empty() && is_stripped(text.back())) text.remove_suffix(1);
    return text;
}

// Copies text of printable bytes, optionally lower-cased, and moves out to its end; false for any other text. Compilers
// vectorize this form.
bool copy_printable(std::string_view text, bool lower_case, char*& out) {
    const uint8_t lower = lower_case ? 0x20 : 0;
    unsigned other = 0;
    for (size_t i = 0; i < text.size(); ++i) {
        const uint8_t c = static_cast<uint8_t>(text[i]);
        other |= static_cast<uint8_t>(c - 0x20) > 0x7e - 0x20;
        out[i] = static_cast<char>(c | (static_cast<uint8_t>(c - 'A') <= 'Z' - 'A' ? lower : 0));
    }
    if (other != 0) return false;
    out += text.size();
    return true;
}

// Copies any text through a byte map; false if a byte is refused.
bool map_bytes(std::string_view text, const ByteMap& bytes, char*& out) {
    bool readable = true;
    for (const char c : text) {
        const uint8_t byte = bytes[static_cast<uint8_t>(c)];
        *out = static_cast<char>(byte);
        out += byte != byte_dropped;
        readable &= byte != byte_refused;
    }
    return readable;
}

// Returns the pairs that can occur in ASCII text; the others would only enlarge the table.
std::vector<bool> reachable(Span<uint32_t> byte_ids, Span<uint32_t> left, Span<uint32_t> right,
                            Span<uint32_t> merged) {
    std::vector<bool> taken(left.size);
    std::unordered_map<uint32_t, bool> known;
    for (size_t byte = 0; byte < 128; ++byte) known[byte_ids[byte]] = true;
    for (bool more = true; more;) {  // a second round finds nothing if parts precede the pairs that contain them
        more = false;
        for (size_t i = 0; i < left.size; ++i) {
            if (taken[i] || known.count(left[i]) == 0 || known.count(right[i]) == 0) continue;
            taken[i] = known[merged[i]] = more = true;
        }
    }
    return taken;
}

}  // namespace

BytePairs::BytePairs(Span<uint32_t> byte_ids, Span<uint32_t> left, Span<uint32_t> right, Span<uint32_t> merged,
                     std::unordered_map<std::string, uint32_t> whole)
    : whole_(std::move(whole)) {
    if (byte_ids.size != byte_ids_.size() || left.size != right.size || left.size != merged.size ||
        left.size >= no_rank) {
        throw InvalidInput("byte pairs need 256 byte ids and as many left, right and merged ids as pairs");
    }
    std::copy(byte_ids.begin(), byte_ids.end(), byte_ids_.begin());
    const std::vector<bool> taken = reachable(byte_ids, left, right, merged);
    size_t size = 2;
    while (size < 2 * static_cast<size_t>(std::count(taken.begin(), taken.end(), true))) size *= 2;
    table_.assign(size, Merge{no_pair, no_rank, 0});
    for (size_t rank = 0; rank < left.size; ++rank) {
        if (!taken[rank]) continue;
        const uint64_t pair = pair_of(left[rank], right[rank]);
        table_[place(pair)] = Merge{pair, static_cast<uint32_t>(rank), merged[rank]};
    }
}

size_t BytePairs::place(uint64_t pair) const {
    size_t at = mix(pair) & (table_.size() - 1);
    while (table_[at].pair != pair && table_[at].pair != no_pair) at = (at + 1) & (table_.size() - 1);
    return at;
}

size_t BytePairs::ids(const char* word, size_t size, uint32_t* out) const {
    if (!whole_.empty()) {
        const auto found = whole_.find(std::string(word, size));
        if (found != whole_.end()) {
            out[0] = found->second;
            return 1;
        }
    }
    uint32_t ranks[max_word_bytes], merged[max_word_bytes];  // of the pair at each position
    const auto look = [&](size_t i) {
        const Merge& merge = table_[place(pair_of(out[i], out[i + 1]))];
        ranks[i] = merge.rank;
        merged[i] = merge.merged;
    };
    for (size_t i = 0; i < size; ++i) out[i] = byte_ids_[static_cast<uint8_t>(word[i])];
    for (size_t i = 0; i + 1 < size; ++i) look(i);
    while (size > 1) {
        const size_t best = static_cast<size_t>(std::min_element(ranks, ranks + size - 1) - ranks);
        if (ranks[best] == no_rank) break;
        out[best] = merged[best];
        const size_t n_after = size - best - 2;  // positions after the pair
        std::memmove(out + best + 1, out + best + 2, n_after * sizeof(uint32_t));
        std::memmove(ranks + best + 1, ranks + best + 2, (n_after > 0 ? n_after - 1 : 0) * sizeof(uint32_t));
        std::memmove(merged + best + 1, merged + best + 2, (n_after > 0 ? n_after - 1 : 0) * sizeof(uint32_t));
        --size;
        if (best > 0) look(best - 1);
        if (best + 1 < size) look(best);
    }
    return size;
}

WordPieces::WordPieces(std::unordered_map<std::string, uint32_t> first,
                       std::unordered_map<std::string, uint32_t> further, uint32_t unknown, size_t max_bytes)
    : first_(std::move(first)),
      further_(std::move(further)),
      unknown_(unknown),
      max_bytes_(max_bytes),
      longest_(std::max(longest(first_), longest(further_))) {}

size_t WordPieces::ids(const char* word, size_t size, uint32_t* out) const {
    size_t n_ids = 0;
    for (size_t begin = 0; begin < size && size <= max_bytes_; ++n_ids) {
        const auto& pieces = begin == 0 ? first_ : further_;
        std::string piece(word + begin, std::min(size - begin, longest_));
        auto found = pieces.find(piece);
        while (found == pieces.end() && piece.size() > 1) {
            piece.pop_back();
            found = pieces.find(piece);
        }
        if (found == pieces.end()) break;
        out[n_ids] = found->second;
        begin += piece.size();
        if (begin == size) return n_ids + 1;
    }
    out[0] = unknown_;
    return 1;
}

WordCache::WordCache() : entries_(cache_entries) {}

struct KeyMask {
    uint64_t low = 0, middle = 0, high = 0;  // ones over the word's bytes
};

constexpr std::array<KeyMask, key_bytes> make_key_masks() {
    std::array<KeyMask, key_bytes> masks{};
    for (size_t size = 0; size < key_bytes; ++size) {
        for (size_t i = 0; i < size; ++i) {
            uint64_t& part = i < 8 ? masks[size].low : i < 16 ? masks[size].middle : masks[size].high;
            part |= uint64_t{0xff} << (8 * (i % 8));
        }
    }
    return masks;
}

constexpr std::array<KeyMask, key_bytes> key_masks = make_key_masks();

// Avoids a branch on the size, which would be mispredicted.
inline WordCache::Key WordCache::key(const char* word, size_t size) {
    uint64_t parts[3];
    std::memcpy(parts, word, sizeof(parts));
    const KeyMask& mask = key_masks[size];
    return {parts[0] & mask.low, parts[1] & mask.middle, (parts[2] & mask.high) | static_cast<uint64_t>(size) << 56};
}

inline size_t WordCache::place(Key key) const {
    return mix(key.low ^ (key.middle + key.high) * 0xc2b2ae3d27d4eb4full) & (cache_entries - 1);
}

inline const WordCache::Entry* WordCache::find(Key key) const {
    const size_t at = place(key);
    for (const size_t i : {at, at ^ 1}) {
        const Entry& entry = entries_[i];
        if (entry.key == key) return &entry;
    }
    return nullptr;
}

void WordCache::insert(Key key, const uint32_t* ids, size_t n_ids) {
    if (n_ids > max_ids) return;
    const size_t at = place(key);
    if (entries_[at].n_ids > 0) entries_[at ^ 1] = entries_[at];
    entries_[at].key = key;
    entries_[at].n_ids = static_cast<uint32_t>(n_ids);
    std::copy(ids, ids + n_ids, entries_[at].ids);
}

struct Tokenizer::Work {
    WordCache cache;
    std::vector<char> text;  // prepared text, followed by key_bytes zeros
    size_t size = 0;         // of the prepared text
    std::vector<uint32_t> ids;
};

class Tokenizer::Lease {
public:
    explicit Lease(const Tokenizer& owner) : owner_(owner) {
        {
            const std::lock_guard<std::mutex> guard(owner.lock_);
            if (!owner.idle_.empty()) {
                work_ = std::move(owner.idle_.back());
                owner.idle_.pop_back();
            }
        }
        if (work_ == nullptr) work_ = std::make_unique<Work>();
    }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    ~Lease() {
        const std::lock_guard<std::mutex> guard(owner_.lock_);
        owner_.idle_.push_back(std::move(work_));
    }
    Work& operator*() const { return *work_; }

private:
    const Tokenizer& owner_;
    std::unique_ptr<Work> work_;
};

Tokenizer::Tokenizer(Split split, const ByteMap& bytes, std::vector<std::string> literals,
                     std::unique_ptr<WordModel> model)
    : split_(split), bytes_(bytes), lower_bytes_(bytes), literals_(std::move(literals)), model_(std::move(model)) {
    for (size_t c = 'A'; c <= 'Z'; ++c) lower_bytes_[c] = bytes[c - 'A' + 'a'];
    for (size_t c = 0x20; c <= 0x7e; ++c) {
        const bool lowered = bytes['A'] == 'a' && c >= 'A' && c <= 'Z';
        plain_ = plain_ && bytes[c] == (lowered ? c + 0x20 : c);
    }
    for (const std::string& literal : literals_) {
        if (literal.empty()) throw InvalidInput("an added token is empty");
        if (first_bytes_.find(literal[0]) == std::string::npos) first_bytes_ += literal[0];
    }
}

Tokenizer::~Tokenizer() = default;

TokenLists Tokenizer::tokenize(const std::vector<std::string_view>& texts, const TextPolicy& policy,
                               size_t n_threads) const {
    const auto read = [&](size_t first, size_t last, TokenLists& out) {
        const Lease work(*this);
        out.indptr.reserve(last - first + 1);
        for (size_t t = first; t < last; ++t) append(texts[t], policy, *work, out);
    };
    TokenLists all;
    const size_t n_chunks = (texts.size() + texts_chunk - 1) / texts_chunk;
    if (std::min(n_threads, n_chunks) <= 1) {
        read(0, texts.size(), all);
        return all;
    }
    std::vector<TokenLists> chunks(n_chunks);
    parallel_for(n_chunks, n_threads, [&](size_t chunk) {
        TokenLists out;  // local, so that threads write to different cache lines
        read(chunk * texts_chunk, std::min(texts.size(), (chunk + 1) * texts_chunk), out);
        chunks[chunk] = std::move(out);
    });
    for (size_t chunk = 0; chunk < n_chunks; ++chunk) {
        const TokenLists& part = chunks[chunk];
        const int64_t n_before = static_cast<int64_t>(all.ids.size());
        all.ids.insert(all.ids.end(), part.ids.begin(), part.ids.end());
        for (size_t t = 1; t < part.indptr.size(); ++t) all.indptr.push_back(n_before + part.indptr[t]);
        for (const size_t t : part.refused) all.refused.push_back(chunk * texts_chunk + t);
    }
    return all;
}

void Tokenizer::append(std::string_view text, const TextPolicy& policy, Work& work, TokenLists& out) const {
    bool refused = !prepare(text, policy, work);
    if (!refused) {
        const size_t most = std::min(work.size, std::min(policy.max_ids, work.size) + max_word_bytes) + WordCache::max_ids;
        if (work.ids.size() < most) work.ids.resize(most);
        uint32_t* ids = work.ids.data();
        size_t n_ids = 0;
        each_word(split_, work.text.data(), work.size, [&](const char* word, size_t size) {
            if (size > max_word_bytes) {
                refused = true;
                return false;
            }
            if (size > WordCache::max_key_bytes) {
                n_ids += model_->ids(word, size, ids + n_ids);
            } else {
                const WordCache::Key key = WordCache::key(word, size);
                const WordCache::Entry* entry = work.cache.find(key);
                if (entry != nullptr) {
                    std::memcpy(ids + n_ids, entry->ids, sizeof(entry->ids));
                    n_ids += entry->n_ids;
                } else {
                    const size_t n_new = model_->ids(word, size, ids + n_ids);
                    work.cache.insert(key, ids + n_ids, n_new);
                    n_ids += n_new;
                }
            }
            return n_ids < policy.max_ids;
        });
        n_ids = refused ? 0 : std::min(n_ids, policy.max_ids);
        const auto dropped = [&](uint32_t id) { return std::binary_search(policy.drop.begin(), policy.drop.end(), id); };
        if (!policy.drop.empty()) n_ids = static_cast<size_t>(std::remove_if(ids, ids + n_ids, dropped) - ids);
        out.ids.insert(out.ids.end(), ids, ids + n_ids);
    }
    if (refused) out.refused.push_back(out.indptr.size() - 1);
    out.indptr.push_back(static_cast<int64_t>(out.ids.size()));
}

bool Tokenizer::prepare(std::string_view text, const TextPolicy& policy, Work& work) const {
    if (text.data() == nullptr) return false;
    if (policy.strip) text = strip(text);
    const bool blank = policy.leading_blank && !text.empty();
    if (work.text.size() < text.size() + 1 + key_bytes) work.text.resize(text.size() + 1 + key_bytes);
    char* out = work.text.data();
    const ByteMap& bytes = policy.lower_case ? lower_bytes_ : bytes_;
    if (blank && !map_bytes(" ", bytes, out)) return false;
    if (!(plain_ && copy_printable(text, bytes['A'] == 'a', out)) && !map_bytes(text, bytes, out)) return false;
    work.size = static_cast<size_t>(out - work.text.data());
    std::memset(out, 0, key_bytes);
    return literals_.empty() || !holds_literal({work.text.data(), work.size});
}

bool Tokenizer::holds_literal(std::string_view text) const {
    for (size_t i = text.find_first_of(first_bytes_); i != text.npos; i = text.find_first_of(first_bytes_, i + 1)) {
        for (const std::string& literal : literals_) {
            if (text.compare(i, literal.size(), literal) == 0) return true;
        }
    }
    return false;
}

void fill_refused(TokenLists& lists, Span<uint32_t> ids, Span<int64_t> indptr) {
    if (indptr.size != lists.refused.size() + 1) throw InvalidInput("one list of ids is needed for each refused text");
    TokenLists filled;
    filled.ids.reserve(lists.ids.size() + ids.size);
    for (size_t t = 0, r = 0; t + 1 < lists.indptr.size(); ++t) {
        const bool refused = r < lists.refused.size() && lists.refused[r] == t;
        const uint32_t* from = refused ? ids.data : lists.ids.data();
        const int64_t* span = refused ? indptr.data + r : lists.indptr.data() + t;
        filled.ids.insert(filled.ids.end(), from + span[0], from + span[1]);
        filled.indptr.push_back(static_cast<int64_t>(filled.ids.size()));
        r += refused;
    }
    lists = std::move(filled);
}

}  // namespace lightir
