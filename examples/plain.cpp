// SPDX-License-Identifier: Apache-2.0
// The library from C++: write two shards (one compressed where there is libzstd), merge them, list, read whole, by
// slice and strings, verify.
//
//     g++ -std=c++17 -Icsrc examples/plain.cpp build/libckptfmt.a -lzstd -pthread -o plain_cpp
//     ./plain_cpp /tmp/example/model
#include "ckptfmt.h"

#include <cstdio>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace {
ckptfmt_error err;

void check(ckptfmt_status status)
{
	if (status != CKPTFMT_OK)
		throw std::runtime_error(std::string(ckptfmt_failure_name(err.failure)) + ": " + err.message);
}

void expect(bool condition, const char *what)
{
	if (!condition)
		throw std::runtime_error(what);
}

const uint8_t *bytes(std::string_view text)
{
	return reinterpret_cast<const uint8_t *>(text.data());
}

struct Close {
	void operator()(ckptfmt_writer *writer) const { ckptfmt_writer_abandon(writer); }
	void operator()(ckptfmt_reader *reader) const { ckptfmt_reader_close(reader); }
	void operator()(ckptfmt_selection *selection) const { ckptfmt_selection_free(selection); }
	void operator()(ckptfmt_strings *strings) const { ckptfmt_strings_free(strings); }
	void operator()(ckptfmt_report *report) const { ckptfmt_report_free(report); }
};
template <typename T> using Handle = std::unique_ptr<T, Close>;
constexpr int64_t rows = 64, columns = 512;

void write(const std::string &first, const std::string &second)
{
	const int64_t shape[] = {rows, columns}, two[] = {2};
	const uint64_t sizes[] = {5, 10};
	std::vector<float> kernel(rows * columns);
	ckptfmt_codec codec;
	ckptfmt_write_options options = {};
	ckptfmt_writer *raw = nullptr;
	std::iota(kernel.begin(), kernel.end(), 0.0f);
	options.struct_size = sizeof options;
	options.chunk_size = 1 << 16;
	if (ckptfmt_codec_zstd(3, &codec, nullptr) == CKPTFMT_OK)
		options.codec = &codec;
	check(ckptfmt_writer_open(first.c_str(), &options, &raw, &err));
	Handle<ckptfmt_writer> writer(raw);
	check(ckptfmt_writer_add_tensor(writer.get(), bytes("kernel"), 6, CKPTFMT_FLOAT, shape, 2,
		reinterpret_cast<const uint8_t *>(kernel.data()), kernel.size() * sizeof kernel[0], &err));
	check(ckptfmt_writer_commit(writer.release(), &err));
	check(ckptfmt_writer_open(second.c_str(), nullptr, &raw, &err));
	writer.reset(raw);
	check(ckptfmt_writer_add_strings(writer.get(), bytes("words"), 5, two, 1, bytes("hellocheckpoint"), sizes, &err));
	check(ckptfmt_writer_commit(writer.release(), &err));
}

void read(ckptfmt_reader *reader)
{
	const int64_t box[] = {1, 3, 2, 3};     // starts, then lengths
	std::vector<float> whole(rows * columns), part(6);
	ckptfmt_selection *raw;
	ckptfmt_strings *strings;
	uint64_t size;
	check(ckptfmt_reader_list(reader, &raw, &err));
	Handle<ckptfmt_selection> selection(raw);
	for (uint64_t row = 0; row < ckptfmt_selection_count(raw); row++)
		std::printf("%s\n", reinterpret_cast<const char *>(ckptfmt_selection_name(raw, row, &size)));
	expect(ckptfmt_selection_count(raw) == 2, "tensors listed");
	check(ckptfmt_tensor_read(reader, bytes("kernel"), 6, nullptr, reinterpret_cast<uint8_t *>(whole.data()),
		whole.size() * sizeof whole[0], CKPTFMT_VERIFY_AUTO, &err));
	check(ckptfmt_tensor_read(reader, bytes("kernel"), 6, box, reinterpret_cast<uint8_t *>(part.data()),
		part.size() * sizeof part[0], CKPTFMT_VERIFY_AUTO, &err));
	expect(whole.back() == rows * columns - 1 && part[5] == 2 * columns + 5, "values read");
	check(ckptfmt_tensor_read_strings(reader, bytes("words"), 5, nullptr, CKPTFMT_VERIFY_AUTO, &strings, &err));
	Handle<ckptfmt_strings> words(strings);
	const uint8_t *word = ckptfmt_strings_at(strings, 1, &size);
	expect(std::string_view(reinterpret_cast<const char *>(word), size) == "checkpoint", "strings read");
}

void run(const std::string &prefix)
{
	const std::string first = prefix + "-a", second = prefix + "-b";
	const char *shards[] = {first.c_str(), second.c_str()};
	ckptfmt_merge_options options = {};
	ckptfmt_reader *reader;
	ckptfmt_report *report;
	options.struct_size = sizeof options, options.consume = 1;
	write(first, second);
	check(ckptfmt_merge(shards, 2, prefix.c_str(), &options, &err));
	check(ckptfmt_reader_open(prefix.c_str(), nullptr, &reader, &err));
	read(Handle<ckptfmt_reader>(reader).get());
	check(ckptfmt_verify(prefix.c_str(), nullptr, &report, &err));
	expect(Handle<ckptfmt_report>(report)->finding_count == 0, "findings");
}

} // namespace
int main(int argc, char **argv)
try {
	return argc == 2 ? (run(argv[1]), 0) : 2;
} catch (const std::exception &error) {
	return std::fprintf(stderr, "%s\n", error.what()), 1;
}
