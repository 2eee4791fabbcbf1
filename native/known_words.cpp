#include "known_words.hpp"

#include <algorithm>

#include "words.hpp"

namespace lightir {
namespace {

bool is_capital(char c) { return c >= 'A' && c <= 'Z'; }

// Whether all letters of an ASCII text, one at least, are capitals.
bool is_upper(std::string_view text) {
    const auto is_small = [](char c) { return c >= 'a' && c <= 'z'; };
    return std::any_of(text.begin(), text.end(), is_capital) && std::none_of(text.begin(), text.end(), is_small);
}

}  // namespace

uint32_t KnownWords::number_of(const std::string& term, double idf, bool is_absent) {
    const auto [found, is_new] = term_numbers_.try_emplace(term, static_cast<uint32_t>(terms_.size()));
    if (is_new) terms_.push_back({term, idf, is_absent});
    return found->second;
}

void KnownWords::learn(std::string_view word, WordKind kind, uint32_t term, bool asks) {
    if (numbers_.find(word, word.data() + word.size()) != WordTerms::unknown) return;
    words_.push_back({kind, asks, term});
    numbers_.add(word, {static_cast<uint32_t>(words_.size() - 1)});
}

// Returns whether all words of a text are known, and can be read here.
bool KnownWords::read_words(std::string_view text, Reading& reading, std::vector<std::string>& unknown) const {
    reading.words.clear();
    reading.named.clear();
    if (text.data() == nullptr || !is_ascii(text)) return false;
    bool reads_all = true;
    each_word(text, reading.lower, [&](std::string_view word) {
        const uint32_t number = numbers_.find(word, reading.lower.data() + reading.lower.size());
        if (number == WordTerms::unknown) {
            unknown.emplace_back(word);
            return;
        }
        reading.words.push_back(number);
        reads_all = reads_all && words_[number].kind != WordKind::other;
        if (!words_[number].asks) return;
        const std::string_view written = text.substr(static_cast<size_t>(word.data() - reading.lower.data()), word.size());
        if (std::all_of(written.begin(), written.end(), is_capital)) reading.named.push_back(number);
    });
    if (!reading.named.empty() && is_upper(text)) reading.named.clear();
    return reads_all;
}

// Picks the terms of the words, ascending by their bytes; of words that ask only those that other words have too, if there are
// other terms.
void KnownWords::pick(Reading& reading, bool counts_asking) const {
    std::vector<uint32_t>& picked = reading.picked;
    picked.clear();
    const auto asks = [&](uint32_t number) {
        const auto& named = reading.named;
        return !counts_asking && words_[number].asks && std::find(named.begin(), named.end(), number) == named.end();
    };
    for (const uint32_t number : reading.words) {
        if (words_[number].kind == WordKind::term && !asks(number)) picked.push_back(words_[number].term);
    }
    std::sort(picked.begin(), picked.end());
    const size_t n_others = picked.size();
    for (const uint32_t number : reading.words) {
        if (words_[number].kind != WordKind::term || !asks(number)) continue;
        const auto end = picked.begin() + static_cast<ptrdiff_t>(n_others);
        const uint32_t term = words_[number].term;
        if (n_others == 0 || std::binary_search(picked.begin(), end, term)) picked.push_back(term);
    }
    std::sort(picked.begin(), picked.end(), [this](uint32_t a, uint32_t b) { return precedes(a, b); });
}

// Adds the query of the picked terms. Its positions are numbers of terms until the batch is complete.
void KnownWords::add(const Reading& reading, WordQueries& queries) const {
    size_t n_absent = 0;
    double of_absent = 0.0;
    for (size_t i = 0, n = 1; i < reading.picked.size(); i += n, n = 1) {
        const uint32_t number = reading.picked[i];
        while (i + n < reading.picked.size() && reading.picked[i + n] == number) ++n;
        if (terms_[number].is_absent) {
            n_absent += n;
            of_absent = terms_[number].idf;
            continue;
        }
        queries.positions.push_back(number);
        queries.weights.push_back(static_cast<float>(static_cast<double>(n) * terms_[number].idf));
    }
    queries.indptr.push_back(static_cast<int64_t>(queries.positions.size()));
    queries.absent.push_back(of_absent * static_cast<double>(n_absent));
    for (const uint32_t number : reading.words) {
        if (words_[number].kind == WordKind::term) queries.words.push_back(words_[number].term);
    }
    queries.word_indptr.push_back(queries.words.size());
}

bool KnownWords::read(const std::vector<std::string_view>& texts, bool counts_asking, WordQueries& queries,
                      std::vector<std::string>& unknown) const {
    Reading reading;
    for (const std::string_view text : texts) {
        if (!read_words(text, reading, unknown)) return false;
        if (!unknown.empty()) continue;
        pick(reading, counts_asking);
        add(reading, queries);
    }
    if (!unknown.empty()) return false;
    const auto by_text = [this](uint32_t a, uint32_t b) { return precedes(a, b); };
    queries.terms = queries.positions;
    if (texts.size() > 1) {
        std::sort(queries.terms.begin(), queries.terms.end(), by_text);
        queries.terms.erase(std::unique(queries.terms.begin(), queries.terms.end()), queries.terms.end());
    }
    for (uint32_t& position : queries.positions) {
        const auto at = std::lower_bound(queries.terms.begin(), queries.terms.end(), position, by_text);
        position = static_cast<uint32_t>(at - queries.terms.begin());
    }
    return true;
}

}  // namespace lightir
