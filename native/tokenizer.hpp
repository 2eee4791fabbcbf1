// Text to term ids without the `tokenizers` library, for ASCII texts of byte-level BPE and WordPiece tokenizers.
//
// A text is prepared (stripped, lower-cased, mapped byte by byte), cut into words, and each word becomes ids through a
// cache of words: real text repeats its words, so most cost one look-up. Whatever the rules here don't cover is
// refused, never guessed: the caller has the library for it.
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

// How a text is cut into words: as the pre-tokenisers of these models do it with ASCII.
enum class Split : uint8_t { gpt2, gpt2_digits, llama3, qwen2, bert };

// Longer words are refused: merging is quadratic in a word's length here, and not in the library.
constexpr size_t max_word_bytes = 256;

// What a byte of the text becomes before it is cut into words; values from 0x80 on are free for marks.
using ByteMap = std::array<uint8_t, 256>;
constexpr uint8_t byte_refused = 0xff;
constexpr uint8_t byte_dropped = 0xfe;

// What is done to a text before it is tokenised and to the ids after it.
struct TextPolicy {
    bool strip = false;
    bool lower_case = false;
    bool leading_blank = false;  // in front of a text that isn't empty
    size_t max_ids = SIZE_MAX;   // the rest is cut off, before `drop` takes any out
    std::vector<uint32_t> drop;  // ascending
};

// From one word to its ids.
class WordModel {
public:
    virtual ~WordModel() = default;
    // Writes the word's ids, at most one a byte, and returns how many; size is 1 to max_word_bytes.
    virtual size_t ids(const char* word, size_t size, uint32_t* out) const = 0;
};

// Byte pair encoding (Sennrich et al. 2016) over bytes: of all neighbors the pair of the lowest rank is merged first,
// of equals the leftmost.
class BytePairs : public WordModel {
public:
    // byte_ids: (256,) the id of each byte as a word of its own. Pair i has rank i: left[i], right[i] become merged[i].
    // whole: words that have an id whatever their merges say.
    BytePairs(Span<uint32_t> byte_ids, Span<uint32_t> left, Span<uint32_t> right, Span<uint32_t> merged,
              std::unordered_map<std::string, uint32_t> whole);
    size_t ids(const char* word, size_t size, uint32_t* out) const override;

private:
    struct Merge {
        uint64_t pair;
        uint32_t rank;
        uint32_t merged;
    };
    size_t place(uint64_t pair) const;  // in the table: where the pair is, or would be

    std::array<uint32_t, 256> byte_ids_;
    std::vector<Merge> table_;  // open addressing, a power of two, at most half full
    std::unordered_map<std::string, uint32_t> whole_;
};

// WordPiece (Wu et al. 2016): from left to right always the longest known piece; the unknown id when none fits.
class WordPieces : public WordModel {
public:
    WordPieces(std::unordered_map<std::string, uint32_t> first, std::unordered_map<std::string, uint32_t> further,
               uint32_t unknown, size_t max_bytes);
    size_t ids(const char* word, size_t size, uint32_t* out) const override;

private:
    std::unordered_map<std::string, uint32_t> first_, further_;  // pieces that begin a word, and those inside one
    uint32_t unknown_;
    size_t max_bytes_;  // of a word that is looked up at all
    size_t longest_;    // piece
};

// The ids of words that came up before. Two places a word; a new one pushes the first into the second.
class WordCache {
public:
    static constexpr size_t max_key_bytes = 23, max_ids = 9;

    struct Key {
        uint64_t low = 0, middle = 0, high = 0;  // the word's bytes; the top byte of high is their number
        bool operator==(const Key& other) const {
            return ((low ^ other.low) | (middle ^ other.middle) | (high ^ other.high)) == 0;
        }
    };
    struct alignas(64) Entry {
        Key key;
        uint32_t n_ids = 0;  // 0: the place is free
        uint32_t ids[max_ids] = {};
    };

    WordCache();
    // Reads 24 bytes from word on, whatever its size.
    static Key key(const char* word, size_t size);
    const Entry* find(Key key) const;
    void insert(Key key, const uint32_t* ids, size_t n_ids);

private:
    size_t place(Key key) const;
    std::vector<Entry> entries_;
};

// Ids of texts, one text after the other.
struct TokenLists {
    std::vector<uint32_t> ids;
    std::vector<int64_t> indptr{0};
    std::vector<size_t> refused;  // texts that the tokenizer can't read, ascending; their lists are empty
};

class Tokenizer {
public:
    // bytes: what becomes of each byte. literals: prepared texts that hold one of these are refused.
    Tokenizer(Split split, const ByteMap& bytes, std::vector<std::string> literals, std::unique_ptr<WordModel> model);
    ~Tokenizer();

    // The ids of each text; a text whose data is null is refused. The same with any number of threads.
    TokenLists tokenize(const std::vector<std::string_view>& texts, const TextPolicy& policy, size_t n_threads) const;

private:
    struct Work;  // a thread's cache and scratch space
    class Lease;  // on a Work that no other thread uses meanwhile

    void append(std::string_view text, const TextPolicy& policy, Work& work, TokenLists& out) const;
    bool prepare(std::string_view text, const TextPolicy& policy, Work& work) const;
    bool holds_literal(std::string_view text) const;

    Split split_;
    ByteMap bytes_, lower_bytes_;  // lower_bytes_: of the text in lower case
    bool plain_ = true;            // printable bytes stay as they are, but for letters that may be lowered
    std::vector<std::string> literals_;
    std::string first_bytes_;  // of the literals, each once
    std::unique_ptr<WordModel> model_;
    mutable std::mutex lock_;
    mutable std::vector<std::unique_ptr<Work>> idle_;
};

// Puts the lists of the refused texts, one after the other, into their places.
void fill_refused(TokenLists& lists, Span<uint32_t> ids, Span<int64_t> indptr);

}  // namespace lightir
