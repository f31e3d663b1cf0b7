// SPDX-License-Identifier: Apache-2.0

// The library from Go: write two shards (one compressed where there is libzstd), merge them, list, read whole, by
// slice and strings, verify.
//
//	CGO_CFLAGS=-I$PWD/csrc CGO_LDFLAGS="$PWD/build/libckptfmt.a -lzstd -lpthread" go build -o plain_go examples/plain.go
//	./plain_go /tmp/example/model
package main

// #include <stdlib.h>
// #include "ckptfmt.h"
import "C"

import (
	"fmt"
	"os"
	"unsafe"
)

const rows, columns = 64, 512

func check(status C.ckptfmt_status, err *C.ckptfmt_error) {
	if status != C.CKPTFMT_OK {
		panic(C.GoString(C.ckptfmt_failure_name(err.failure)) + ": " + C.GoString(&err.message[0]))
	}
}

func expect(condition bool, what string) {
	if !condition {
		panic("wrong: " + what)
	}
}

func first[T any](values []T) *C.uint8_t {
	return (*C.uint8_t)(unsafe.Pointer(&values[0]))
}

var kernel, words = []byte("kernel"), []byte("words")

func write(one, two *C.char) {
	var err C.ckptfmt_error
	var writer *C.ckptfmt_writer
	values := make([]float32, rows*columns)
	for i := range values {
		values[i] = float32(i)
	}
	// A struct that holds pointers is in C's memory, as cgo wants it.
	options := (*C.ckptfmt_write_options)(C.calloc(1, C.sizeof_ckptfmt_write_options))
	codec := (*C.ckptfmt_codec)(C.calloc(1, C.sizeof_ckptfmt_codec))
	defer C.free(unsafe.Pointer(options))
	defer C.free(unsafe.Pointer(codec))
	options.struct_size = C.sizeof_ckptfmt_write_options
	options.chunk_size = 1 << 16
	if C.ckptfmt_codec_zstd(3, codec, nil) == C.CKPTFMT_OK {
		options.codec = codec
	}
	shape, pair, sizes := []C.int64_t{rows, columns}, []C.int64_t{2}, []C.uint64_t{5, 10}
	check(C.ckptfmt_writer_open(one, options, &writer, &err), &err)
	check(C.ckptfmt_writer_add_tensor(writer, first(kernel), C.uint64_t(len(kernel)), C.CKPTFMT_FLOAT, &shape[0], 2,
		first(values), C.uint64_t(4*len(values)), &err), &err)
	check(C.ckptfmt_writer_commit(writer, &err), &err)
	check(C.ckptfmt_writer_open(two, nil, &writer, &err), &err)
	check(C.ckptfmt_writer_add_strings(writer, first(words), C.uint64_t(len(words)), &pair[0], 1,
		first([]byte("hellocheckpoint")), &sizes[0], &err), &err)
	check(C.ckptfmt_writer_commit(writer, &err), &err)
}

func read(reader *C.ckptfmt_reader) {
	var err C.ckptfmt_error
	var selection *C.ckptfmt_selection
	var strings *C.ckptfmt_strings
	var size C.uint64_t
	check(C.ckptfmt_reader_list(reader, &selection, &err), &err)
	defer C.ckptfmt_selection_free(selection)
	count := C.ckptfmt_selection_count(selection)
	for row := C.uint64_t(0); row < count; row++ {
		name := C.ckptfmt_selection_name(selection, row, &size)
		fmt.Println(C.GoStringN((*C.char)(unsafe.Pointer(name)), C.int(size)))
	}
	expect(count == 2, "tensors listed")
	whole, part := make([]float32, rows*columns), make([]float32, 6)
	box := []C.int64_t{1, 3, 2, 3} // starts, then lengths
	check(C.ckptfmt_tensor_read(reader, first(kernel), C.uint64_t(len(kernel)), nil, first(whole),
		C.uint64_t(4*len(whole)), C.CKPTFMT_VERIFY_AUTO, &err), &err)
	check(C.ckptfmt_tensor_read(reader, first(kernel), C.uint64_t(len(kernel)), &box[0], first(part),
		C.uint64_t(4*len(part)), C.CKPTFMT_VERIFY_AUTO, &err), &err)
	expect(whole[rows*columns-1] == rows*columns-1 && part[5] == 2*columns+5, "values read")
	check(C.ckptfmt_tensor_read_strings(reader, first(words), C.uint64_t(len(words)), nil, C.CKPTFMT_VERIFY_AUTO,
		&strings, &err), &err)
	defer C.ckptfmt_strings_free(strings)
	word := C.ckptfmt_strings_at(strings, 1, &size)
	expect(C.GoStringN((*C.char)(unsafe.Pointer(word)), C.int(size)) == "checkpoint", "strings read")
}

func main() {
	var err C.ckptfmt_error
	var reader *C.ckptfmt_reader
	var report *C.ckptfmt_report
	prefix, one, two := C.CString(os.Args[1]), C.CString(os.Args[1]+"-a"), C.CString(os.Args[1]+"-b")
	write(one, two)
	shards := (*[2]*C.char)(C.calloc(2, C.size_t(unsafe.Sizeof(one))))
	shards[0], shards[1] = one, two
	options := C.ckptfmt_merge_options{struct_size: C.sizeof_ckptfmt_merge_options, consume: 1}
	check(C.ckptfmt_merge(&shards[0], 2, prefix, &options, &err), &err)
	check(C.ckptfmt_reader_open(prefix, nil, &reader, &err), &err)
	read(reader)
	C.ckptfmt_reader_close(reader)
	check(C.ckptfmt_verify(prefix, nil, &report, &err), &err)
	expect(report.finding_count == 0, "findings")
	C.ckptfmt_report_free(report)
}
