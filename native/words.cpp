#include "words.hpp"

#include <array>
#include <cstring>

#include "errors.hpp"

namespace lightir {
namespace {

// Maps each byte to its lower case, or to 0 if it is not part of a word.
std::array<uint8_t, 256> word_bytes() {
    std::array<uint8_t, 256> map{};
    for (int c = '0'; c <= '9'; ++c) map[static_cast<size_t>(c)] = static_cast<uint8_t>(c);
    for (int c = 'a'; c <= 'z'; ++c) map[static_cast<size_t>(c)] = static_cast<uint8_t>(c);
    for (int c = 'A'; c <= 'Z'; ++c) map[static_cast<size_t>(c)] = static_cast<uint8_t>(c - 'A' + 'a');
    map[static_cast<size_t>('_')] = '_';
    return map;
}

// Words and their ids: open addressing, at most half full.
class Dictionary {
public:
    explicit Dictionary(WordLists& out) : out_(out), table_(1024) {}

    uint32_t id(std::string_view word, uint64_t hash) {
        size_t at = place(word, hash);
        if (table_[at].id != none) return table_[at].id;
        if (out_.ends.size() >= none) throw InvalidInput("more than 4,294,967,294 different words in one batch");
        if (2 * (out_.ends.size() + 1) > table_.size()) {
            grow();
            at = place(word, hash);
        }
        table_[at] = {hash, static_cast<uint32_t>(out_.ends.size())};
        out_.text.append(word);
        out_.ends.push_back(out_.text.size());
        return table_[at].id;
    }

private:
    static constexpr uint32_t none = 0xffffffffu;
    struct Entry {
        uint64_t hash = 0;
        uint32_t id = none;
    };

    std::string_view word(uint32_t id) const {
        const size_t begin = id == 0 ? 0 : out_.ends[id - 1];
        return std::string_view(out_.text).substr(begin, out_.ends[id] - begin);
    }

    size_t place(std::string_view wanted, uint64_t hash) const {
        size_t at = hash & (table_.size() - 1);
        while (table_[at].id != none && (table_[at].hash != hash || word(table_[at].id) != wanted)) {
            at = (at + 1) & (table_.size() - 1);
        }
        return at;
    }

    void grow() {
        std::vector<Entry> old(2 * table_.size());
        old.swap(table_);
        for (const Entry& entry : old) {
            if (entry.id == none) continue;
            size_t at = entry.hash & (table_.size() - 1);
            while (table_[at].id != none) at = (at + 1) & (table_.size() - 1);
            table_[at] = entry;
        }
    }

    WordLists& out_;
    std::vector<Entry> table_;
};

// FNV-1a with its upper bits mixed into the lower bits that the table uses.
uint64_t hash_of(std::string_view word) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (const char c : word) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
    return hash ^ hash >> 32;
}

}  // namespace

bool is_ascii(std::string_view text) {
    uint8_t all = 0;
    for (const char c : text) all = static_cast<uint8_t>(all | static_cast<uint8_t>(c));
    return all < 0x80;
}

void set_lower(std::string_view text, std::string& lower) {
    static const std::array<uint8_t, 256> bytes = word_bytes();
    lower.resize(text.size());
    for (size_t i = 0; i < text.size(); ++i) lower[i] = static_cast<char>(bytes[static_cast<uint8_t>(text[i])]);
}

WordLists split_words(const std::vector<std::string_view>& texts) {
    WordLists out;
    Dictionary dictionary(out);
    std::string lower;
    for (size_t i = 0; i < texts.size(); ++i) {
        if (texts[i].data() == nullptr || !is_ascii(texts[i])) {
            out.refused.push_back(i);
        } else {
            each_word(texts[i], lower, [&](std::string_view word) { out.ids.push_back(dictionary.id(word, hash_of(word))); });
        }
        out.indptr.push_back(static_cast<int64_t>(out.ids.size()));
    }
    return out;
}

}  // namespace lightir
