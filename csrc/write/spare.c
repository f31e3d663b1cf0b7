/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data files of checkpoints that are removed, for the data files of the next one: writing over blocks that are there is
 * quicker than having new ones made (CMT-22, CMT-23).
 *
 *   take -> writer_recycle: the file is the writer's, or gone
 *   take -> close: it is gone
 */
#include "base/memory.h"
#include "write/writer.h"

struct ckptfmt_spare {
	cf_prefix place;            /* its old name, as a path */
	cf_directory directory;
	cf_file_writer file;        /* closed, or taken and nothing put */
};

static void free_spare(ckptfmt_spare *spare)
{
	cf_os_directory_close(&spare->directory);
	cf_prefix_free(&spare->place);
	cf_release(spare);
}

static ckptfmt_status take(ckptfmt_spare *spare, const char *path, uint64_t size_max, bool *taken, ckptfmt_error *err)
{
	*taken = false;
	CF_TRY(cf_prefix_split(path, &spare->place, err));
	if (spare->place.base[0] == '\0')
		return CKPTFMT_OK;
	CF_TRY(cf_os_directory_open(spare->place.directory, false, false, &spare->directory, err));
	*taken = cf_file_writer_take(&spare->file, &spare->directory, spare->place.base, size_max);
	return CKPTFMT_OK;
}

ckptfmt_status ckptfmt_spare_take(const char *path, uint64_t size_max, ckptfmt_spare **out, ckptfmt_error *err)
{
	ckptfmt_spare *spare = cf_allocate_zero(1, sizeof *spare);
	ckptfmt_status status;
	bool taken;
	*out = NULL;
	if (spare == NULL)
		return cf_fail_memory(err);
	spare->directory.fd = -1;
	status = take(spare, path, size_max, &taken, err);
	if (status == CKPTFMT_OK && taken)
		*out = spare;
	else
		free_spare(spare);
	return status;
}

void ckptfmt_spare_close(ckptfmt_spare *spare, int32_t removes)
{
	if (spare == NULL)
		return;
	if (removes)
		cf_file_writer_abandon(&spare->file);
	else
		cf_os_close_quietly(&spare->file.file);
	free_spare(spare);
}

/* The first data file, if it is as it was made. */
static void recycle(ckptfmt_writer *writer, ckptfmt_spare *spare)
{
	cf_data_file *first = &writer->files[0];
	cf_file_writer file;
	char name[CF_NAME_SIZE];
	if (writer->file_count == 0 || first->tensor_count != 0 || first->file.state != CF_FILE_WRITER_WRITING ||
		cf_file_writer_position(&first->file) != 0)
		return;
	cf_data_name(writer->prefix.base, 0, writer->file_count, name);
	if (!cf_file_writer_move(&file, &spare->file, &writer->directory, name))
		return;
	if (writer->options.durability == CKPTFMT_DURABILITY_FULL)
		cf_file_writer_sync_ahead(&file);
	cf_file_writer_abandon(&first->file);
	first->file = file;
}

ckptfmt_status ckptfmt_writer_recycle(ckptfmt_writer *writer, ckptfmt_spare *spare, ckptfmt_error *err)
{
	ckptfmt_status status = cf_writer_check_state(writer, false, err);
	if (status == CKPTFMT_OK)
		recycle(writer, spare);
	ckptfmt_spare_close(spare, 1);
	return status;
}
