/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Storage on the file system of this machine: what the functions of storage/os.h do where a directory has no other
 * storage. The contracts are those of storage/os.h. posix.c, posix_files.c and posix_direct.c implement this;
 * tests/c/os_fault.c replaces them and fails on purpose. Only storage/ includes this.
 */
#ifndef CKPTFMT_STORAGE_LOCAL_H
#define CKPTFMT_STORAGE_LOCAL_H

#include "storage/os.h"

CF_MUST_CHECK ckptfmt_status cf_local_directory_open(const char *path, bool make,
	bool sync_parents, cf_directory *out,
	ckptfmt_error *err);
void cf_local_directory_close(cf_directory *directory);
void cf_local_directory_remove(const char *path);
CF_MUST_CHECK ckptfmt_status cf_local_directory_sync(const cf_directory *directory, ckptfmt_error *err);
CF_MUST_CHECK ckptfmt_status cf_local_directory_lock(const cf_directory *directory, uint64_t timeout_ms,
	ckptfmt_error *err);
void cf_local_directory_unlock(const cf_directory *directory);
CF_MUST_CHECK ckptfmt_status cf_local_directory_list(const cf_directory *directory,
	cf_buffer *names, ckptfmt_error *err);
CF_MUST_CHECK ckptfmt_status cf_local_open(const cf_directory *directory, const char *name, bool follow_symlinks,
	cf_file *out, cf_file_info *info, ckptfmt_error *err);
CF_MUST_CHECK ckptfmt_status cf_local_create(const cf_directory *directory, const char *name,
	cf_file *out, bool *exists,
	ckptfmt_error *err);
bool cf_local_hold(const cf_directory *directory, const char *name, const cf_file *file);
CF_MUST_CHECK ckptfmt_status cf_local_stat(const cf_directory *directory, const char *name, cf_file_info *info,
	bool *exists, ckptfmt_error *err);
CF_MUST_CHECK ckptfmt_status cf_local_file_info(const cf_file *file, const char *path, cf_file_info *info,
	ckptfmt_error *err);
CF_MUST_CHECK ckptfmt_status cf_local_close(cf_file *file, const char *path, ckptfmt_error *err);
CF_MUST_CHECK ckptfmt_status cf_local_close_held(cf_file *file, const char *path, ckptfmt_error *err);
void cf_local_close_quietly(cf_file *file);
CF_MUST_CHECK ckptfmt_status cf_local_read_at(const cf_file *file, const char *path, uint8_t *to, uint64_t size,
	uint64_t offset, uint64_t *got, ckptfmt_error *err);
CF_MUST_CHECK ckptfmt_status cf_local_write_at(const cf_file *file, const char *path,
	const uint8_t *from, uint64_t size,
	uint64_t offset, ckptfmt_error *err);
void cf_local_reserve(const cf_file *file, uint64_t size);
void cf_local_trim(const cf_file *file, uint64_t size);
void cf_local_sync_ahead(const cf_file *file, uint64_t offset, uint64_t size);
CF_MUST_CHECK ckptfmt_status cf_local_sync(const cf_file *file, const char *path, ckptfmt_error *err);
CF_MUST_CHECK ckptfmt_status cf_local_rename(const cf_directory *from, const char *from_name, const cf_directory *to,
	const char *to_name, ckptfmt_error *err);
CF_MUST_CHECK ckptfmt_status cf_local_link(const cf_directory *from, const char *from_name, const cf_directory *to,
	const char *to_name, cf_link_result *result, ckptfmt_error *err);
CF_MUST_CHECK ckptfmt_status cf_local_rename_new(const cf_directory *from, const char *from_name,
	const cf_directory *to,
	const char *to_name, bool *exists, ckptfmt_error *err);
CF_MUST_CHECK ckptfmt_status cf_local_unlink(const cf_directory *directory, const char *name, ckptfmt_error *err);
CF_MUST_CHECK ckptfmt_status cf_local_map(const cf_file *file, const char *path, uint64_t offset, uint64_t size,
	const uint8_t **out, ckptfmt_error *err);
cf_direct *cf_local_direct_write(const cf_file *file);
cf_direct *cf_local_direct_read(const cf_directory *directory, const char *name, bool follow_symlinks,
	const cf_file *file);
bool cf_local_is_cached(const cf_file *file, uint64_t offset, uint64_t size);

#endif
