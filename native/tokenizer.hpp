// Text to term ids without the `tokenizers` library, for ASCII texts of byte-level BPE and WordPiece tokenizers.
//
// A text is prepared (stripped, lower-cased, mapped byte by byte) and split into words. A cache maps words to ids; real text
// repeats its words, so most need one lookup. Texts that these rules do not cover are refused, never guessed; the caller
// passes them to the library.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "arrays.hpp"

namespace lightir {

// The way to split ASCII text into words, named after models with such a pre-tokenizer.
enum class Split : uint8_t { gpt2, gpt2_digits, llama3, qwen2, bert };

// Longer words are refused, since merging is quadratic in a word's length here but not in the library.
constexpr size_t max_word_bytes = 256;

// Maps each byte of a text before it is split into words; values of 0x80 and above are marks.
using ByteMap = std::array<uint8_t, 256>;
constexpr uint8_t byte_refused = 0xff;
constexpr uint8_t byte_dropped = 0xfe;

// Changes to a text before tokenization and to its ids afterward.
struct TextPolicy {
    bool strip = false;
    bool lower_case = false;
    bool leading_blank = false;  // prepended to a text that is not empty
    size_t max_ids = SIZE_MAX;   // longer lists are truncated, before `drop` is applied
    std::vector<uint32_t> drop;  // ascending
};

// Converts one word to its ids.
class WordModel {
public:
    virtual ~WordModel() = default;
    // Writes the word's ids, at most one per byte, and returns their number; size is 1 to max_word_bytes.
    virtual size_t ids(const char* word, size_t size, uint32_t* out) const = 0;
};

// Byte pair encoding (Sennrich et al. 2016) over bytes: merges the adjacent pair of the lowest rank first, and the leftmost
// of equal pairs.
class BytePairs : public WordModel {
public:
    // byte_ids: (256,) ids of single bytes. Pair i has rank i and merges left[i], right[i] into merged[i].
    // whole: words whose id takes precedence over merges.
    BytePairs(Span<uint32_t> byte_ids, Span<uint32_t> left, Span<uint32_t> right, Span<uint32_t> merged,
              std::unordered_map<std::string, uint32_t> whole);
    size_t ids(const char* word, size_t size, uint32_t* out) const override;

private:
    struct Merge {
        uint64_t pair;
        uint32_t rank;
        uint32_t merged;
    };
    size_t place(uint64_t pair) const;  // position or insertion point of the pair in the table

    std::array<uint32_t, 256> byte_ids_;
    std::vector<Merge> table_;  // open addressing, a power of two, at most half full
    std::unordered_map<std::string, uint32_t> whole_;
};

// WordPiece (Wu et al. 2016): takes the longest known piece from left to right; the unknown id if none fits.
class WordPieces : public WordModel {
public:
    WordPieces(std::unordered_map<std::string, uint32_t> first, std::unordered_map<std::string, uint32_t> further,
               uint32_t unknown, size_t max_bytes);
    size_t ids(const char* word, size_t size, uint32_t* out) const override;

private:
    std::unordered_map<std::string, uint32_t> first_, further_;  // pieces at the start of a word, and pieces inside one
    uint32_t unknown_;
    size_t max_bytes_;  // maximum size of a word; longer ones are unknown
    size_t longest_;    // size of the longest piece
};

// A cache of words' ids with two entries per slot; a new word moves the first entry to the second.
class WordCache {
public:
    static constexpr size_t max_key_bytes = 23, max_ids = 9;

    struct Key {
        uint64_t low = 0, middle = 0, high = 0;  // the word's bytes; the top byte of high is the word's size
        bool operator==(const Key& other) const {
            return ((low ^ other.low) | (middle ^ other.middle) | (high ^ other.high)) == 0;
        }
    };
    struct alignas(64) Entry {
        Key key;
        uint32_t n_ids = 0;  // 0 if the entry is free
        uint32_t ids[max_ids] = {};
    };

    WordCache();
    // Reads 24 bytes from the start of the word, whatever its size.
    static Key key(const char* word, size_t size);
    const Entry* find(Key key) const;
    void insert(Key key, const uint32_t* ids, size_t n_ids);

private:
    size_t place(Key key) const;
    std::vector<Entry> entries_;
};

// Concatenated ids of texts.
struct TokenLists {
    std::vector<uint32_t> ids;
    std::vector<int64_t> indptr{0};
    std::vector<size_t> refused;  // ascending positions of unsupported texts; their lists are empty
};

class Tokenizer {
public:
    // bytes: map of each byte. literals: a prepared text that contains one of these is refused.
    Tokenizer(Split split, const ByteMap& bytes, std::vector<std::string> literals, std::unique_ptr<WordModel> model);
    ~Tokenizer();

    // Returns the ids of each text; a text whose data is null is refused. The result does not depend on n_threads.
    TokenLists tokenize(const std::vector<std::string_view>& texts, const TextPolicy& policy, size_t n_threads) const;

private:
    struct Work;  // a thread's cache and scratch space
    class Lease;  // exclusive use of a Work by one thread

    void append(std::string_view text, const TextPolicy& policy, Work& work, TokenLists& out) const;
    bool prepare(std::string_view text, const TextPolicy& policy, Work& work) const;
    bool holds_literal(std::string_view text) const;

    Split split_;
    ByteMap bytes_, lower_bytes_;  // lower_bytes_: map that also lower-cases
    bool plain_ = true;            // whether printable bytes are unchanged, except for lower-casing
    std::vector<std::string> literals_;
    std::string first_bytes_;  // distinct first bytes of the literals
    std::unique_ptr<WordModel> model_;
    mutable std::mutex lock_;
    mutable std::vector<std::unique_ptr<Work>> idle_;
};

// Inserts the lists of the refused texts, in order, at their positions.
void fill_refused(TokenLists& lists, Span<uint32_t> ids, Span<int64_t> indptr);

}  // namespace lightir
