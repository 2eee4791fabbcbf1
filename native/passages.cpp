#include "passages.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <random>

#include "dispatch.hpp"
#include "levels.hpp"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace lightir {
namespace {

constexpr size_t short_bytes = 16, least_slots = 1024;
constexpr size_t block_size = 256, n_blocks = 0x110000 / block_size, most_texts = 500'000;

// Returns the number of bytes of a character from its first byte.
size_t width_of(char first) {
    const auto byte = static_cast<uint8_t>(first);
    return byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}

// Returns the character of valid UTF-8.
uint32_t character_of(std::string_view bytes) {
    const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<uint8_t>(bytes[i])); };
    switch (bytes.size()) {
        case 1: return byte(0);
        case 2: return (byte(0) & 0x1fu) << 6 | (byte(1) & 0x3fu);
        case 3: return (byte(0) & 0x0fu) << 12 | (byte(1) & 0x3fu) << 6 | (byte(2) & 0x3fu);
        default:
            return (byte(0) & 0x07u) << 18 | (byte(1) & 0x3fu) << 12 | (byte(2) & 0x3fu) << 6 | (byte(3) & 0x3fu);
    }
}

// Returns the product of two numbers, its halves joined: the mixing step of wyhash.
uint64_t mixed(uint64_t a, uint64_t b) {
    const auto product = static_cast<unsigned __int128>(a) * b;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

// Returns how many of 16 bytes, from the first one on, are ASCII letters, digits and underscores.
size_t n_plain(const char* bytes) {
#if defined(__SSE2__)
    const __m128i text = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
    const auto within = [](__m128i from, char n) {  // whether 0 <= from < n, without a sign
        return _mm_cmpeq_epi8(_mm_min_epu8(from, _mm_set1_epi8(static_cast<char>(n - 1))), from);
    };
    const __m128i lower = _mm_or_si128(text, _mm_set1_epi8(0x20));
    const __m128i letters = within(_mm_sub_epi8(lower, _mm_set1_epi8('a')), 26);
    const __m128i digits = within(_mm_sub_epi8(text, _mm_set1_epi8('0')), 10);
    const __m128i plain = _mm_or_si128(_mm_or_si128(letters, digits), _mm_cmpeq_epi8(text, _mm_set1_epi8('_')));
    return static_cast<size_t>(__builtin_ctz(~static_cast<unsigned>(_mm_movemask_epi8(plain))));
#else
    size_t n = 0;
    while (n < short_bytes && is_plain(static_cast<uint8_t>(bytes[n]))) ++n;
    return n;
#endif
}

// Returns the number of bits that are set. The builtin calls a function where the processor may lack the instruction.
size_t n_bits(uint64_t bits) {
    bits -= bits >> 1 & 0x5555555555555555u;
    bits = (bits & 0x3333333333333333u) + (bits >> 2 & 0x3333333333333333u);
    return ((bits + (bits >> 4)) & 0x0f0f0f0f0f0f0f0fu) * 0x0101010101010101u >> 56;
}

// Returns a mask of the first n bits, n at most 64.
uint64_t first_bits(size_t n) { return n == 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1; }

// Sets the first and the last 8 bytes of a word of at most 16, with zeros after its end.
void load(std::string_view word, const char* text_end, uint64_t& head, uint64_t& tail) {
    head = tail = 0;
    const size_t n = word.size();
    if (static_cast<size_t>(text_end - word.data()) < short_bytes) [[unlikely]] {
        char bytes[short_bytes] = {};
        std::memcpy(bytes, word.data(), n);
        std::memcpy(&head, bytes, 8);
        std::memcpy(&tail, bytes + 8, 8);
        return;
    }
    std::memcpy(&head, word.data(), 8);
    if (n < 8) {
        head &= (uint64_t{1} << 8 * n) - 1;
    } else if (n > 8) {
        std::memcpy(&tail, word.data() + 8, 8);
        if (n < short_bytes) tail &= (uint64_t{1} << 8 * (n - 8)) - 1;
    }
}

}  // namespace

WordTerms::WordTerms() : slots_(least_slots) {
    std::random_device random;
    for (uint64_t& key : keys_) key = (uint64_t{random()} << 32 | random()) | 1;
}

// Returns the slot of a word, or the free one where it belongs.
size_t WordTerms::slot_of(uint64_t head, uint64_t tail, uint32_t length) const {
    const size_t last = slots_.size() - 1;
    size_t at = mixed(head ^ keys_[0], tail ^ keys_[1]) & last;
    while (slots_[at].length != 0 &&
           (slots_[at].head != head || slots_[at].tail != tail || slots_[at].length != length)) {
        at = (at + 1) & last;
    }
    return at;
}

uint32_t WordTerms::find(std::string_view word, const char* text_end) const {
    if (word.size() > short_bytes) {
        const auto found = longer_.find(std::string(word));
        return found == longer_.end() ? unknown : found->second;
    }
    uint64_t head, tail;
    load(word, text_end, head, tail);
    const Slot& slot = slots_[slot_of(head, tail, static_cast<uint32_t>(word.size()))];
    return slot.length == 0 ? unknown : slot.number;
}

void WordTerms::add(std::string_view word, std::vector<uint32_t> terms) {
    uint32_t number = terms.empty() ? no_term : terms[0];
    if (terms.size() > 1) {
        number = several | static_cast<uint32_t>(lists_.size());
        lists_.push_back(std::move(terms));
    }
    if (word.size() > short_bytes || word.empty()) {
        longer_.emplace(word, number);
        return;
    }
    if (2 * (n_short_ + 1) > slots_.size()) {
        std::vector<Slot> before(2 * slots_.size());
        before.swap(slots_);
        for (const Slot& slot : before) {
            if (slot.length != 0) slots_[slot_of(slot.head, slot.tail, slot.length)] = slot;
        }
    }
    uint64_t head, tail;
    load(word, word.data() + word.size(), head, tail);
    const auto length = static_cast<uint32_t>(word.size());
    Slot& slot = slots_[slot_of(head, tail, length)];
    if (slot.length != 0) return;
    slot = {head, tail, number, length};
    ++n_short_;
}

void WordTerms::clear() {
    slots_.assign(least_slots, {});
    n_short_ = 0;
    longer_.clear();
    lists_.clear();
}

PassageFinder::PassageFinder(bool han_terms, bool same_beginnings)
    : han_terms_(han_terms), same_beginnings_(same_beginnings), classes_(n_blocks) {}

void PassageFinder::learn_block(uint32_t block, const uint8_t* classes) {
    if (block >= n_blocks) return;
    classes_[block] = std::make_unique<uint8_t[]>(block_size);
    for (size_t i = 0; i < block_size; ++i) {
        classes_[block][i] = (classes[i] & blank_class) != 0 ? blank_class : classes[i];  // white space ends words
    }
    if (block != 0) return;
    plain_words_ = plain_blanks_ = true;
    for (uint8_t byte = 0; byte < 0x80; ++byte) {
        const uint8_t kind = classes_[0][byte];
        plain_words_ = plain_words_ && (kind & (word_class | han_class)) == (is_plain(byte) ? word_class : 0);
        plain_blanks_ = plain_blanks_ && ((kind & blank_class) != 0) == is_plain_blank(byte);
    }
}

uint32_t PassageFinder::number_of(std::string_view term) {
    const auto [found, is_new] = terms_.try_emplace(std::string(term), static_cast<uint32_t>(terms_.size()));
    if (is_new) wanted_.push_back(WordTerms::no_term);
    return found->second;
}

void PassageFinder::forget_if_full() {
    if (words_.size() + terms_.size() < most_texts) return;
    words_.clear();
    terms_.clear();
    wanted_.clear();
    numbers_.clear();
}

void PassageFinder::learn_word(std::string_view word, const std::vector<std::string>& terms) {
    forget_if_full();
    if (words_.find(word, word.data() + word.size()) != WordTerms::unknown) return;
    std::vector<uint32_t> numbers;
    for (const std::string& term : terms) numbers.push_back(number_of(term));
    std::sort(numbers.begin(), numbers.end());
    numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
    words_.add(word, std::move(numbers));
}

uint8_t PassageFinder::class_of(uint32_t character, Missing& missing) const {
    const uint32_t block = character / block_size;
    if (classes_[block] != nullptr) return classes_[block][character % block_size];
    if (std::find(missing.blocks.begin(), missing.blocks.end(), block) == missing.blocks.end()) {
        missing.blocks.push_back(block);
    }
    return 0;
}

uint8_t PassageFinder::class_at(std::string_view text, size_t at, Missing& missing) const {
    return class_of(character_of(text.substr(at, width_of(text[at]))), missing);
}

// Keeps the window that starts at match window_ if it is the best so far, and goes on to the next one.
void PassageFinder::finish_window() {
    if (within_ > best_) {
        best_ = within_;
        best_match_ = window_;
        if (best_ == counts_.size()) stop_ = matches_[window_].start + size_.length;
    }
    for (size_t j = matches_[window_].first_term; j < matches_[window_].last_term; ++j) {
        within_ -= --counts_[matched_terms_[j]] == 0;
    }
    ++window_;
}

// Adds a match to the windows that reach it, those of the passage's length without its lead from a match on. Of windows with equally many
// different terms the first one is best. Once one has all terms, nothing after its end matters.
void PassageFinder::add_match(const Match& match) {
    if (match.first_term == match.last_term) return;
    const size_t added = matches_.size(), window_length = size_.length - std::min(size_.length, size_.lead);
    matches_.push_back(match);
    if (best_ == counts_.size()) return;  // only for the highlights
    while (window_ < added && match.end > matches_[window_].start + window_length) finish_window();
    for (size_t j = match.first_term; j < match.last_term; ++j) within_ += counts_[matched_terms_[j]]++ == 0;
    if (within_ == counts_.size()) finish_window();
}

void PassageFinder::end_word(std::string_view word, size_t start, size_t end, size_t first_byte, const char* text_end,
                             Missing& missing) {
    const uint32_t number = words_.find(word, text_end);
    if (number == WordTerms::no_term) return;
    if (number == WordTerms::unknown) {
        missing.words.push_back(word);
        return;
    }
    const size_t first_term = matched_terms_.size();
    if ((number & WordTerms::several) == 0) {
        if (wanted_[number] == WordTerms::no_term) return;
        matched_terms_.push_back(wanted_[number]);
    } else {
        for (const uint32_t term : words_.list(number)) {
            if (wanted_[term] != WordTerms::no_term) matched_terms_.push_back(wanted_[term]);
        }
    }
    add_match({start, end, first_byte, first_term, matched_terms_.size()});
}

// Finds wanted pairs, and single characters outside them, in the run of Han characters from `at` on. Returns its end.
size_t PassageFinder::end_han(std::string_view text, size_t at, size_t start, size_t& n_characters, Missing& missing) {
    std::vector<size_t> first_bytes;
    for (; at < text.size() && (class_at(text, at, missing) & han_class) != 0; at += width_of(text[at])) {
        first_bytes.push_back(at);
    }
    const size_t n_run = first_bytes.size();
    first_bytes.push_back(at);
    const auto part = [&](size_t first, size_t n) {
        return text.substr(first_bytes[first], first_bytes[first + n] - first_bytes[first]);
    };
    const auto position = [&](std::string_view term) {
        name_ = term;
        const auto found = terms_.find(name_);
        return found == terms_.end() ? WordTerms::no_term : wanted_[found->second];
    };
    for (size_t i = 0; i < n_run;) {
        const uint32_t pair = i + 1 < n_run ? position(part(i, 2)) : WordTerms::no_term;
        const size_t n = pair != WordTerms::no_term ? 2 : 1, first_term = matched_terms_.size();
        if (n == 2) matched_terms_.push_back(pair);
        for (size_t j = i; j < i + n; ++j) {
            const uint32_t single = position(part(j, 1));
            if (single != WordTerms::no_term && !(j == i + 1 && part(i, 1) == part(j, 1))) {
                matched_terms_.push_back(single);
            }
        }
        add_match({start + i, start + i + n, first_bytes[i], first_term, matched_terms_.size()});
        i += n;
    }
    n_characters = n_run;
    return at;
}

// Returns the end of the word from `at` on, and sets its number of characters.
size_t PassageFinder::word_end(std::string_view text, size_t at, size_t& n_characters, Missing& missing) const {
    const uint8_t* const ascii = classes_[0].get();
    const size_t first = at;
    size_t more_bytes = 0;
    if (plain_words_ && text.size() - at > short_bytes) {  // most words end within 16 bytes
        at += n_plain(text.data() + at);
        if (at < first + short_bytes && static_cast<uint8_t>(text[at]) < 0x80) {
            n_characters = at - first;
            return at;
        }
    }
    while (at < text.size()) {
        const auto byte = static_cast<uint8_t>(text[at]);
        if (byte < 0x80) {
            if ((ascii[byte] & word_class) == 0) break;
            ++at;
            continue;
        }
        const uint8_t kind = class_at(text, at, missing);
        if ((kind & word_class) == 0 || (han_terms_ && (kind & han_class) != 0)) break;
        more_bytes += width_of(text[at]) - 1;
        at += width_of(text[at]);
    }
    n_characters = at - first - more_bytes;
    return at;
}

// Sets the beginnings of the ASCII words that may have a wanted term.
void PassageFinder::want_beginnings(const std::vector<std::string>& wanted) {
    beginnings_ = {};
    if (!same_beginnings_) {
        for (uint8_t* place : {beginnings_.first, beginnings_.second, beginnings_.third}) Beginnings::set_all(place, 0xff);
    }
    for (size_t term = 0; same_beginnings_ && term < wanted.size(); ++term) {
        const std::string& text = wanted[term];
        const auto bit = static_cast<uint8_t>(1u << term % 8);
        const auto add = [&](uint8_t* place, size_t at) {
            place[Beginnings::low(text[at])] |= bit;
            if (text[at] == 'i' && at > 0) place[Beginnings::low('y')] |= bit;
        };
        if (text.empty()) continue;
        add(beginnings_.first, 0);
        if (text.size() > 1) add(beginnings_.second, 1);
        else Beginnings::set_all(beginnings_.second, bit);
        if (text.size() > 3) add(beginnings_.third, 2);
        else Beginnings::set_all(beginnings_.third, bit);
    }
}

// Scans ASCII text from `at` on, where no word goes on, 64 bytes at a time, up to what `scan` has to read: other characters,
// words of many bytes, the end of the text. Returns where it stopped; `n` and `blank` are those of `scan`.
size_t PassageFinder::scan_blocks(std::string_view text, size_t at, size_t& n, bool& blank, Missing& missing) {
    const char* const text_end = text.data() + text.size();
    size_t counted = n + blank;
    const auto masks_of = level().text_masks;
    while (text.size() - at >= block_bytes_read && counted <= stop_) {
        const char* const bytes = text.data() + at;
        const TextMasks masks = masks_of(bytes, beginnings_);
        size_t end = masks.others == 0 ? block_bytes : static_cast<size_t>(__builtin_ctzll(masks.others));
        const uint64_t before_word = ~masks.words & first_bits(end);  // the last word may go on behind the block
        end = before_word == 0 ? 0 : block_bytes - static_cast<size_t>(__builtin_clzll(before_word));
        if (end == 0) break;
        const uint64_t after_word = masks.words << 1, characters = ~(masks.blanks & (masks.blanks << 1 | blank));
        const auto n_before = [&](size_t i) {
            return counted + n_bits(characters & first_bits(i));
        };
        uint64_t starts = masks.words & ~after_word & masks.begins & first_bits(end);
        for (; starts != 0; starts &= starts - 1) {
            const auto start = static_cast<size_t>(__builtin_ctzll(starts));
            const auto length = static_cast<size_t>(__builtin_ctzll(~(masks.words >> start)));
            if (length < (han_terms_ ? 1u : 2u)) continue;
            const size_t first = n_before(start);
            end_word(text.substr(at + start, length), first, first + length, at + start, text_end, missing);
        }
        counted = n_before(end);
        blank = (masks.blanks >> (end - 1) & 1) != 0;
        at += end;
    }
    n = counted - blank;
    return at;
}

// Sets matches_, and the best window.
void PassageFinder::scan(std::string_view text, Missing& missing) {
    const char* const text_end = text.data() + text.size();
    const uint8_t* const ascii = classes_[0].get();
    size_t n = 0, n_run = 0;  // characters so far, blanks in a row counted once
    bool blank = false;
    for (size_t at = 0; at < text.size() && n <= stop_;) {
        if (plain_words_ && plain_blanks_ && n > 0) at = scan_blocks(text, at, n, blank, missing);
        const auto byte = static_cast<uint8_t>(text[at]);
        const uint8_t kind = byte < 0x80 ? ascii[byte] : class_at(text, at, missing);
        if ((kind & blank_class) != 0) {
            blank = n > 0;
            at += width_of(text[at]);
            continue;
        }
        n += blank;
        blank = false;
        if (han_terms_ && (kind & han_class) != 0) {
            at = end_han(text, at, n, n_run, missing);
        } else if ((kind & word_class) != 0) {
            const size_t end = word_end(text, at, n_run, missing);
            if (n_run >= (han_terms_ ? 1u : 2u)) {
                end_word(text.substr(at, end - at), n, n + n_run, at, text_end, missing);
            }
            at = end;
        } else {
            n_run = 1;
            at += width_of(text[at]);
        }
        n += n_run;
    }
    while (best_ < counts_.size() && window_ < matches_.size()) finish_window();
    n_characters_ = n;
}

// Returns the first byte of the character that is n characters before a byte.
size_t PassageFinder::back(std::string_view text, size_t at, size_t n, Missing& missing) const {
    const auto before = [&](size_t byte) {
        do --byte;
        while ((static_cast<uint8_t>(text[byte]) & 0xc0) == 0x80);
        return byte;
    };
    for (; n > 0; --n) {
        at = before(at);
        if ((class_at(text, at, missing) & blank_class) == 0) continue;
        for (size_t next = at; next > 0 && (class_at(text, next = before(next), missing) & blank_class) != 0;) at = next;
    }
    return at;
}

// Sets the passage around the best window: what `lead` and `length` allow, between words if blanks are near.
void PassageFinder::cut(std::string_view text, Passage& passage, Missing& missing) {
    const bool is_whole = n_characters_ <= size_.length, at_start = is_whole || best_ == 0;
    const size_t first = at_start ? 0 : matches_[best_match_].start;
    size_t start = first - std::min(first, size_.lead);
    const size_t begin = start - (start > 0);  // one character more, which may be a blank
    size_t at = at_start ? 0 : back(text, matches_[best_match_].first_byte, first - begin, missing);
    const uint8_t* const ascii = classes_[0].get();
    const size_t most = std::min(first - begin + size_.length, text.size() - at) + 2;
    if (bytes_.size() < most + 1) bytes_.resize(most + 1);
    if (part_.size() < 4 * most) part_.resize(4 * most);
    char* const part = part_.data();
    size_t* const bytes = bytes_.data();  // the first byte of each character in part
    size_t n = 0, n_bytes = 0;
    for (bool blank = false; at < text.size() && n <= first - begin + size_.length;) {
        const auto byte = static_cast<uint8_t>(text[at]);
        const uint8_t kind = byte < 0x80 ? ascii[byte] : class_at(text, at, missing);
        const size_t width = width_of(text[at]);
        at += width;
        if ((kind & blank_class) != 0) {
            blank = begin + n > 0;
            continue;
        }
        if (blank) {
            bytes[n++] = n_bytes;
            part[n_bytes++] = ' ';
        }
        blank = false;
        bytes[n++] = n_bytes;
        for (size_t i = at - width; i < at; ++i) part[n_bytes++] = text[i];
    }
    bytes[n] = n_bytes;
    const auto is_blank = [&](size_t character) { return part[bytes[character - begin]] == ' '; };
    if (start > 0) {
        for (size_t i = begin; i < first; ++i) {
            if (is_blank(i)) {
                start = i + 1;
                break;
            }
        }
    }
    size_t end = std::min(n_characters_, start + size_.length);
    passage.cut_before = start > 0;
    if (end < n_characters_) {
        for (size_t i = end + 1; i-- > start + size_.length / 2;) {
            if (is_blank(i)) {
                end = i;
                break;
            }
        }
    }
    passage.cut_after = end < n_characters_;
    passage.text.assign(part + bytes[start - begin], part + bytes[end - begin]);
    for (const Match& match : matches_) {
        if (match.start >= start && match.end <= end) passage.matches.emplace_back(match.start - start, match.end - start);
    }
}

void PassageFinder::want(const std::vector<std::string>& wanted, PassageSize size) {
    for (const uint32_t number : numbers_) wanted_[number] = WordTerms::no_term;
    numbers_.clear();
    forget_if_full();
    for (const std::string& term : wanted) {
        numbers_.push_back(number_of(term));
        wanted_[numbers_.back()] = static_cast<uint32_t>(numbers_.size() - 1);
    }
    want_beginnings(wanted);
    size_ = size;
}

bool PassageFinder::find(std::string_view text, Passage& passage, Missing& missing) {
    if (classes_[0] == nullptr) {
        missing.blocks.push_back(0);
        return false;
    }
    matches_.clear();
    matched_terms_.clear();
    counts_.assign(numbers_.size(), 0);
    window_ = within_ = best_ = best_match_ = 0;
    stop_ = numbers_.empty() ? size_.length : std::numeric_limits<size_t>::max();
    scan(text, missing);
    if (missing.blocks.empty() && missing.words.empty()) {
        cut(text, passage, missing);
        return true;
    }
    if (!missing.blocks.empty()) missing.words.clear();  // they may be parts of words
    std::sort(missing.words.begin(), missing.words.end());
    missing.words.erase(std::unique(missing.words.begin(), missing.words.end()), missing.words.end());
    return false;
}

}  // namespace lightir
