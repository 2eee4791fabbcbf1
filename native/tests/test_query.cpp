// Tests of query encoding under sanitizers: tokenizers at the boundaries of their buffers, on exactly sized texts.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "dispatch.hpp"
#include "errors.hpp"
#include "expect.hpp"
#include "expansions.hpp"
#include "known_words.hpp"
#include "query.hpp"
#include "tokenizer.hpp"
#include "tokenizer_split.hpp"
#include "words.hpp"

using namespace lightir;

namespace {

ByteMap ascii_as_it_is() {
    ByteMap bytes;
    for (size_t c = 0; c < bytes.size(); ++c) bytes[c] = static_cast<uint8_t>(c < 0x80 ? c : byte_refused);
    return bytes;
}

// Every byte is a term; "ab" is 300, "abab" 301.
Tokenizer byte_pairs(Split split) {
    std::vector<uint32_t> byte_ids(256);
    for (uint32_t c = 0; c < 256; ++c) byte_ids[c] = c;
    const std::vector<uint32_t> left{'a', 300}, right{'b', 300}, merged{300, 301};
    return {split, ascii_as_it_is(), {"<x>"},
            std::make_unique<BytePairs>(span(byte_ids), span(left), span(right), span(merged),
                                        std::unordered_map<std::string, uint32_t>{})};
}

Tokenizer word_pieces() {
    std::unordered_map<std::string, uint32_t> first{{"ab", 1}, {"a", 2}}, further{{"b", 3}, {"ba", 4}};
    return {Split::bert, ascii_as_it_is(), {}, std::make_unique<WordPieces>(first, further, 0, 100)};
}

// Exactly sized texts on the heap.
TokenLists tokenize(const Tokenizer& tokenizer, const std::vector<std::string>& texts, const TextPolicy& policy,
                    size_t n_threads = 1) {
    std::vector<std::unique_ptr<char[]>> kept;
    std::vector<std::string_view> views;
    for (const std::string& text : texts) {
        kept.emplace_back(new char[text.size()]);
        text.copy(kept.back().get(), text.size());
        views.emplace_back(kept.back().get(), text.size());
    }
    return tokenizer.tokenize(views, policy, n_threads);
}

void pairs_are_merged_by_rank() {
    const Tokenizer tokenizer = byte_pairs(Split::gpt2);
    const TokenLists lists = tokenize(tokenizer, {"ababab", "", "ba", "<x>", "\xc3\xa9", "a<x"}, {});
    expect(lists.ids == std::vector<uint32_t>{301, 300, 'b', 'a', 'a', '<', 'x'}, "ids");
    expect(lists.indptr == std::vector<int64_t>{0, 2, 2, 4, 4, 4, 7}, "indptr");
    expect(lists.refused == std::vector<size_t>{3, 4}, "an added token and a byte that isn't ASCII are refused");
    expect(tokenizer.tokenize({std::string_view()}, {}, 1).refused.size() == 1, "no text is refused");
}

void pieces_are_the_longest() {
    const TokenLists lists = tokenize(word_pieces(), {"abba aab b  ab!", std::string(300, 'a')}, {});
    expect(lists.ids == std::vector<uint32_t>{1, 4, 0, 0, 1, 0}, "pieces");
    expect(lists.refused == std::vector<size_t>{1}, "a very long word is refused");
}

void any_text_fits_its_buffers() {
    std::mt19937 random(1);
    const std::string alphabet = "ab01' \t\n\r-AS";
    for (const Split split : {Split::gpt2, Split::gpt2_digits, Split::llama3, Split::qwen2}) {
        const Tokenizer tokenizer = byte_pairs(split);
        for (const size_t max_ids : {size_t{0}, size_t{1}, size_t{40}, SIZE_MAX}) {
            std::vector<std::string> texts;
            for (size_t size = 0; size < 300; ++size) {
                std::string text;
                while (text.size() < size) text += alphabet[random() % (size % 2 == 0 ? 2 : alphabet.size())];
                texts.push_back(text);
            }
            const TextPolicy policy{true, true, true, max_ids, {'a', 300}};
            const TokenLists one = tokenize(tokenizer, texts, policy), many = tokenize(tokenizer, texts, policy, 3);
            expect(one.ids == many.ids && one.indptr == many.indptr && one.refused == many.refused,
                   "threads change nothing");
            for (size_t t = 0; t < texts.size(); ++t) {
                const size_t n_ids = static_cast<size_t>(one.indptr[t + 1] - one.indptr[t]);
                expect(n_ids <= max_ids && n_ids <= texts[t].size() + 1, "number of ids");
            }
        }
    }
}

// Compares with a loop over bytes, for every byte at each of the eight positions, and every end.
void runs_end_where_they_should() {
    size_t n_wrong = 0;
    for (size_t run = 0; run < 20; ++run) {
        for (int byte = 0; byte < 128; ++byte) {
            const char c = static_cast<char>(byte);
            for (size_t end = 0; end <= run + 2; ++end) {
                const std::string word = std::string(run, 'q') + c + "z" + std::string(8, '\0');
                const std::string number = std::string(run, ';') + c + "z" + std::string(8, '\0');
                const size_t letters_end = std::min(end, run + (kind(c) == Kind::letter ? 2 : 0));
                const size_t digit = std::min(end, kind(c) == Kind::digit ? run : run + 2);
                n_wrong += end_of_letters(word.data(), 0, end) != letters_end;
                n_wrong += end_of_long_run(number.data(), 0, end, digits) != digit;
            }
        }
    }
    expect(n_wrong == 0, "ends of runs");
}

void long_and_short_lists_are_counted_alike() {
    std::mt19937 random(2);
    for (size_t size = 0; size < 60; ++size) {
        std::vector<uint32_t> ids(size);
        for (uint32_t& id : ids) id = static_cast<uint32_t>(random() % 9);
        const std::vector<int64_t> indptr{0, static_cast<int64_t>(size)};
        const SparseQueries counted = count_terms(span(ids), span(indptr), {9, false, nullptr});
        std::vector<float> found(9, 0.0f), expected(9, 0.0f);
        for (const uint32_t id : ids) expected[id] += 1;
        for (size_t i = 0; i < counted.term_ids.size(); ++i) found[counted.term_ids[i]] = counted.weights[i];
        expect(found == expected && std::is_sorted(counted.term_ids.begin(), counted.term_ids.end()), "counts");
    }
}

void rows_beyond_the_table_are_not_fetched() {
    const std::vector<uint8_t> data(8, 0);
    const std::vector<uint32_t> ids{0, 1, 2, 0xffffffffu};
    fetch_rows({data.data(), 2, 4, Element::int8, nullptr}, span(ids), 4);
    fetch_rows({data.data(), 2, 0, Element::int8, nullptr}, span(ids), 0);
}

void refused_texts_are_filled_in() {
    TokenLists lists = tokenize(byte_pairs(Split::gpt2), {"<x>", "ab", "<x>"}, {});
    const std::vector<uint32_t> ids{7, 8, 9};
    const std::vector<int64_t> indptr{0, 1, 3};
    fill_refused(lists, span(ids), span(indptr));
    expect(lists.ids == std::vector<uint32_t>{7, 300, 8, 9} && lists.refused.empty(), "filled ids");
    expect(lists.indptr == std::vector<int64_t>{0, 1, 2, 4}, "filled indptr");
    expect_throws<InvalidInput>([&] { fill_refused(lists, span(ids), span(indptr)); },
                                "lists for texts that were not refused");
}

void means_stay_inside_their_arrays(Element element, size_t width, size_t dim) {
    const size_t n_rows = 7;
    const std::vector<uint8_t> data(n_rows * width * element_bytes(element), 0);
    const std::vector<float> scales(n_rows, 1.0f);
    const Matrix rows{data.data(), n_rows, width, element, element == Element::int8 ? scales.data() : nullptr};
    const std::vector<uint32_t> ids{0, 6, 0, 6, 5, 4, 3, 2, 1, 0, 0, 6, 6};
    const std::vector<int64_t> indptr{0, 0, 2, 13};
    std::vector<float> out(3 * dim, -1.0f);
    mean_rows(rows, span(ids), span(indptr), dim, true, 2, out.data());
    bool all_zero = true;
    for (const float value : out) all_zero = all_zero && value == 0.0f;
    expect(all_zero, "the mean of zero rows is zero, and so is that of no rows");
}

void pairs_are_found_and_weighted() {
    const std::vector<uint32_t> pairs{0, 1, 1, 1, 1, 0xffffffffu};
    const PairIndex index(span(pairs));
    std::vector<uint32_t> found;
    const std::vector<uint32_t> terms{1, 1, 1, 0, 1, 0xffffffffu, 0};
    index.find(span(terms), found);
    expect(found == std::vector<uint32_t>{1, 1, 0, 2}, "pairs in text order, repeats included");
    index.find({terms.data(), 1}, found);
    PairIndex({}).find(span(terms), found);
    expect(found.size() == 4, "one term has no pair, and no pair has a row in an empty index");

    const std::vector<float> rows{1, 0, 0, 1}, rows_of_pairs{0, 4, 0, 0, 0, 0}, keys{100, -100, 0, 0, 0}, values(5, 1.0f);
    const PairRows pair_rows{&index, {rows_of_pairs.data(), 3, 2, Element::float32, nullptr}};
    const Gate gate{{keys.data(), 5, 1, Element::float32, nullptr}, {values.data(), 5, 1, Element::float32, nullptr}};
    const QueryRows all{{rows.data(), 2, 2, Element::float32, nullptr}, &pair_rows, &gate};
    const std::vector<uint32_t> ids{0, 1};
    const std::vector<int64_t> indptr{0, 0, 2};
    std::vector<float> out(4, -1.0f);
    encode_queries(all, span(ids), span(indptr), 2, 2, out.data());
    const double x = std::exp(6.0), y = std::exp(-6.0) + 4, length = std::sqrt(x * x + y * y);
    expect(out[0] == 0 && out[1] == 0, "a query without terms");
    expect(std::abs(out[2] - x / length) < 1e-6 && std::abs(out[3] - y / length) < 1e-6, "clipped weights");
}

void terms_are_counted() {
    const std::vector<uint32_t> ids{5, 2, 5, 3, 0};
    const std::vector<int64_t> indptr{0, 4, 4, 5};
    const std::vector<float> factors{0.5f, 1, 2, 0, 1, 3};
    const SparseQueries counted = count_terms(span(ids), span(indptr), {6, false, factors.data()});
    expect(counted.indptr == std::vector<int64_t>{0, 2, 2, 3}, "a term of weight 0 is left out");
    expect(counted.term_ids == std::vector<uint32_t>{2, 5, 0}, "terms ascend");
    expect(counted.weights == std::vector<float>{2, 6, 0.5f}, "counts times factors");
    expect_throws<InvalidInput>([&] { count_terms(span(ids), span(indptr), {5, true, nullptr}); },
                                "a term outside the vocabulary");
}

void expansions_are_averaged() {
    const std::vector<uint32_t> row_ids{5, 2, 4095, 2, 70, 70};
    const std::vector<float> weights{1.0f, 0.5f, 0.0f, 3.0f, 0.25f, 0.5f};
    const Expansions rows{row_ids.data(), weights.data(), Element::float32, 2, 3};
    const std::vector<uint32_t> tokens{0, 1, 1, 0};
    const std::vector<int64_t> indptr{0, 3, 3, 4};
    const SparseQueries means = mean_expansions(rows, span(tokens), span(indptr), 4096, 2);
    expect(means.indptr == std::vector<int64_t>{0, 3, 3, 5}, "terms of weight 0 are left out");
    expect(means.term_ids == std::vector<uint32_t>{2, 5, 70, 2, 5}, "terms ascend");
    expect(means.weights[2] == 0.5f && means.weights[3] == 0.5f && means.weights[4] == 1.0f, "means");
    expect_throws<InvalidInput>([&] { mean_expansions(rows, span(tokens), span(indptr), 4095, 1); },
                                "an expansion outside the vocabulary");
}

void words_are_cut_and_numbered() {
    std::string many;
    for (int i = 0; i < 3000; ++i) many += "w" + std::to_string(i) + " ";
    const std::unique_ptr<char[]> exact(new char[5]{'b', '_', '1', ' ', 'A'});
    const WordLists lists = split_words({{exact.get(), 5}, "", "Ab aB x", "caf\xc3\xa9", {}, many});
    expect(lists.refused == std::vector<size_t>{3, 4}, "texts that are not ASCII");
    expect(lists.indptr == std::vector<int64_t>{0, 1, 1, 3, 3, 3, 3003}, "words of each text");
    expect(lists.text.substr(0, 9) == "b_1abw0w1" && lists.ends.size() == 3002, "distinct words");
    expect(lists.ids[0] == 0 && lists.ids[1] == 1 && lists.ids[2] == 1 && lists.ids.back() == 3001, "their places");
}

void known_words_are_counted() {
    KnownWords known;
    const std::string longer(40, 'x');
    const uint32_t tea = known.number_of("tea", 2.0, false), none = known.number_of("zz", 5.0, true);
    known.learn("teas", WordKind::term, tea, false);
    known.learn("tea", WordKind::term, known.number_of("tea", 2.0, false), false);
    known.learn(longer, WordKind::term, known.number_of(longer, 1.0, false), false);
    known.learn("who", WordKind::term, known.number_of("who", 3.0, false), true);
    known.learn("zz", WordKind::term, none, false);
    known.learn("the", WordKind::no_term, 0, false);
    known.learn("odd", WordKind::other, 0, false);
    const auto read = [&](const std::string& text, WordQueries& queries) {
        const std::unique_ptr<char[]> exact(new char[text.size()]);  // so that a read beyond the text is seen
        std::copy(text.begin(), text.end(), exact.get());
        std::vector<std::string> unknown;
        return known.read({{exact.get(), text.size()}}, false, queries, unknown) && unknown.empty();
    };
    WordQueries teas, asking, named;
    expect(read("Who? the TEA, teas " + longer + " ZZ", teas), "known words");
    expect(teas.terms == std::vector<uint32_t>{tea, 2} && teas.weights == std::vector<float>{4.0f, 1.0f}, "counts x idf");
    expect(teas.absent == std::vector<double>{5.0} && teas.words.size() == 5, "absent terms, and all words' terms");
    expect(read("who", asking) && asking.weights == std::vector<float>{3.0f}, "a word that asks alone");
    expect(read("WHO tea who", named) && named.weights == std::vector<float>{2.0f, 6.0f}, "an abbreviation does not ask");
    WordQueries other, batch;
    expect(!read("odd tea", other) && !read("caf\xc3\xa9", other), "texts that cannot be read");
    std::vector<std::string> unknown;
    expect(!known.read({"tea cup", "pot cup"}, false, other, unknown), "words that are not known");
    expect(unknown == std::vector<std::string>{"cup", "pot", "cup"}, "they are named");
    unknown.clear();
    expect(known.read({"who zz", "", "tea who"}, true, batch, unknown), "several texts");
    expect(batch.indptr == std::vector<int64_t>{0, 1, 1, 3}, "queries of each text");
    expect(batch.positions == std::vector<uint32_t>{1, 0, 1}, "positions among all terms");
}

}  // namespace

int main() {
    for (const std::string& name : available_levels()) {
        use_level(name);
        for (const Element element : {Element::float16, Element::float32, Element::int8, Element::bfloat16}) {
            for (const size_t width : {1, 15, 16, 33, 130, 4099}) {
                means_stay_inside_their_arrays(element, width, width);
                means_stay_inside_their_arrays(element, width, (width + 1) / 2);
            }
        }
    }
    pairs_are_found_and_weighted();
    terms_are_counted();
    expansions_are_averaged();
    long_and_short_lists_are_counted_alike();
    runs_end_where_they_should();
    rows_beyond_the_table_are_not_fetched();
    pairs_are_merged_by_rank();
    pieces_are_the_longest();
    any_text_fits_its_buffers();
    refused_texts_are_filled_in();
    words_are_cut_and_numbered();
    known_words_are_counted();
    return outcome();
}
