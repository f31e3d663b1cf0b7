// SPDX-License-Identifier: Apache-2.0
//! The library from Rust: write two shards, merge them, list, read whole, by slice and strings, verify. Only flat calls
//! are declared here; bindgen declares the whole header.
//!
//!     rustc examples/plain.rs -C link-arg=build/libckptfmt.a -C link-arg=-lzstd -o plain_rs
//!     ./plain_rs /tmp/example/model
use std::ffi::{c_char, c_void, CStr, CString};
use std::ptr::{null, null_mut};

#[repr(C)]
struct Error {
    status: i32, failure: i32, os_errno: i32, tensor_size: u32, offset: u64,
    message: [c_char; 384], tensor: [c_char; 256], path: [c_char; 1024],
}

#[repr(C)]
struct Codec {
    struct_size: u64, context: *mut c_void, encode: *const c_void, decode: *const c_void, flags: u32, reserved: u32,
}
#[repr(C)]
struct WriteOptions {
    struct_size: u64, alignment: u64, chunk_size: u32, durability: i32, data_size: u64,
    storage: *const c_void, codec: *const Codec, shards: i32, reserved: i32,
}
#[repr(C)]
struct MergeOptions {
    struct_size: u64, consume: i32, allow_missing: i32, durability: i32, remove_directories: i32,
    limits: *const c_void, storage: *const c_void,
}
#[repr(C)]
struct Report {
    findings: *const c_void, finding_count: u64, bytes_checked: u64, tensors_checked: u64,
}
type Handle = *mut c_void;

extern "C" {
    fn ckptfmt_codec_zstd(level: i32, out: *mut Codec, err: *mut Error) -> i32;
    fn ckptfmt_writer_open(prefix: *const c_char, options: *const WriteOptions, out: *mut Handle, err: *mut Error) -> i32;
    fn ckptfmt_writer_add_tensor(writer: Handle, name: *const u8, name_size: u64, dtype: i32, dims: *const i64,
        rank: i32, data: *const u8, size: u64, err: *mut Error) -> i32;
    fn ckptfmt_writer_add_strings(writer: Handle, name: *const u8, name_size: u64, dims: *const i64, rank: i32,
        bytes: *const u8, sizes: *const u64, err: *mut Error) -> i32;
    fn ckptfmt_writer_commit(writer: Handle, err: *mut Error) -> i32;
    fn ckptfmt_merge(prefixes: *const *const c_char, count: u64, to: *const c_char, options: *const MergeOptions,
        err: *mut Error) -> i32;
    fn ckptfmt_reader_open(prefix: *const c_char, options: *const c_void, out: *mut Handle, err: *mut Error) -> i32;
    fn ckptfmt_reader_list(reader: Handle, out: *mut Handle, err: *mut Error) -> i32;
    fn ckptfmt_selection_count(selection: Handle) -> u64;
    fn ckptfmt_selection_name(selection: Handle, row: u64, size: *mut u64) -> *const u8;
    fn ckptfmt_selection_free(selection: Handle);
    fn ckptfmt_tensor_read(reader: Handle, name: *const u8, name_size: u64, box_: *const i64, to: *mut u8, size: u64,
        verify: i32, err: *mut Error) -> i32;
    fn ckptfmt_tensor_read_strings(reader: Handle, name: *const u8, name_size: u64, box_: *const i64, verify: i32,
        out: *mut Handle, err: *mut Error) -> i32;
    fn ckptfmt_strings_at(strings: Handle, i: u64, size: *mut u64) -> *const u8;
    fn ckptfmt_strings_free(strings: Handle);
    fn ckptfmt_reader_close(reader: Handle);
    fn ckptfmt_verify(prefix: *const c_char, options: *const c_void, out: *mut *mut Report, err: *mut Error) -> i32;
    fn ckptfmt_report_free(report: *mut Report);
}

fn check(status: i32, err: &Error) {
    assert!(status == 0, "{}", unsafe { CStr::from_ptr(err.message.as_ptr()) }.to_string_lossy());
}

fn main() {
    let prefix = std::env::args().nth(1).expect("usage: plain_rs PREFIX");
    let path = |tail: &str| CString::new(format!("{prefix}{tail}")).unwrap();
    let (whole, one, two) = (path(""), path("-a"), path("-b"));
    let kernel: Vec<f32> = (0..64 * 512).map(|i| i as f32).collect();
    let (mut all, mut part, mut size) = (vec![0f32; kernel.len()], [0f32; 6], 0u64);
    let mut handle: Handle = null_mut();
    unsafe {
        let e = &mut std::mem::zeroed::<Error>();
        let mut codec: Codec = std::mem::zeroed();
        let mut options: WriteOptions = std::mem::zeroed();
        options.struct_size = std::mem::size_of::<WriteOptions>() as u64;
        options.chunk_size = 1 << 16;
        if ckptfmt_codec_zstd(3, &mut codec, null_mut()) == 0 {
            options.codec = &codec;
        }
        check(ckptfmt_writer_open(one.as_ptr(), &options, &mut handle, e), e);
        check(ckptfmt_writer_add_tensor(handle, b"kernel".as_ptr(), 6, 1, [64, 512].as_ptr(), 2, kernel.as_ptr().cast(),
            4 * kernel.len() as u64, e), e);
        check(ckptfmt_writer_commit(handle, e), e);
        check(ckptfmt_writer_open(two.as_ptr(), null(), &mut handle, e), e);
        let text = b"hellocheckpoint".as_ptr();
        check(ckptfmt_writer_add_strings(handle, b"words".as_ptr(), 5, [2].as_ptr(), 1, text, [5, 10].as_ptr(), e), e);
        check(ckptfmt_writer_commit(handle, e), e);
        let mut merge: MergeOptions = std::mem::zeroed();
        (merge.struct_size, merge.consume) = (std::mem::size_of::<MergeOptions>() as u64, 1);
        check(ckptfmt_merge([one.as_ptr(), two.as_ptr()].as_ptr(), 2, whole.as_ptr(), &merge, e), e);
        let (mut reader, mut report): (Handle, *mut Report) = (null_mut(), null_mut());
        check(ckptfmt_reader_open(whole.as_ptr(), null(), &mut reader, e), e);
        check(ckptfmt_reader_list(reader, &mut handle, e), e);
        assert_eq!(ckptfmt_selection_count(handle), 2);
        for row in 0..2 {
            println!("{}", CStr::from_ptr(ckptfmt_selection_name(handle, row, &mut size).cast()).to_string_lossy());
        }
        ckptfmt_selection_free(handle);
        let (name, to) = (b"kernel".as_ptr(), all.as_mut_ptr().cast());
        check(ckptfmt_tensor_read(reader, name, 6, null(), to, 4 * kernel.len() as u64, 0, e), e);
        check(ckptfmt_tensor_read(reader, name, 6, [1, 3, 2, 3].as_ptr(), part.as_mut_ptr().cast(), 24, 0, e), e);
        assert!(all == kernel && part[5] == 1029.0);
        check(ckptfmt_tensor_read_strings(reader, b"words".as_ptr(), 5, null(), 0, &mut handle, e), e);
        let word = ckptfmt_strings_at(handle, 1, &mut size);
        assert_eq!(std::slice::from_raw_parts(word, size as usize), b"checkpoint");
        ckptfmt_strings_free(handle);
        ckptfmt_reader_close(reader);
        check(ckptfmt_verify(whole.as_ptr(), null(), &mut report, e), e);
        assert_eq!((*report).finding_count, 0);
        ckptfmt_report_free(report);
    }
}
