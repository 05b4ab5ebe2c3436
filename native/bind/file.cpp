// Reads and writes of files, for the transfer engine's file transport.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <list>
#include <memory>
#include <stdexcept>
#include <string>
#include <system_error>

#include "bind.hpp"
#include "buffer.hpp"
#include "column_args.hpp"
#include "file_io.hpp"
#include "owner_process.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace moonpool {
namespace {

// Also says in `why` why it is not io_uring.
std::unique_ptr<FileIo> make_io(const std::string& backend, const FileIoOptions& options,
                                std::string& why) {
  if (backend != "auto" && backend != "io_uring" && backend != "threads") {
    throw std::invalid_argument("backend '" + backend + "' is not auto, io_uring or threads");
  }
  if (backend != "threads") {
    try {
      return make_uring_io(options);
    } catch (const std::system_error& error) {
      why = error.what();
      if (backend == "io_uring") throw;
    }
  }
  return make_thread_io(options);
}

// The threads, and the buffers of jobs that nobody holds any more and that still run.
struct FileIoHandle {
  FileIoHandle(const std::string& backend, const FileIoOptions& options)
      : io(make_io(backend, options, why)) {}

  void sweep() {
    std::erase_if(orphans, [](const auto& orphan) { return orphan.job->terminal(); });
  }

  // In a forked child nothing: all of it is the parent's.
  void close() {
    if (!io.usable()) return;
    {
      nb::gil_scoped_release release;
      io->close();
    }
    sweep();
  }

  struct Orphan {
    std::shared_ptr<FileJob> job;
    Buffer buffer;
  };
  std::list<Orphan> orphans;
  std::string why;
  OfProcess<FileIo> io;
};

using FileIoRef = std::shared_ptr<FileIoHandle>;

class PyFileIo {
 public:
  PyFileIo(const std::string& backend, unsigned depth, unsigned threads, std::size_t jobs_max)
      : handle(std::make_shared<FileIoHandle>(backend, FileIoOptions{depth, threads, jobs_max})) {}
  ~PyFileIo() { handle->close(); }
  FileIoRef handle;
};

class PyFileJob {
 public:
  PyFileJob(FileIoRef home, std::shared_ptr<FileJob> job, Buffer buffer)
      : job(std::move(job)), home_(std::move(home)), buffer_(std::move(buffer)) {}
  PyFileJob(PyFileJob&&) = default;
  ~PyFileJob() {
    if (!job || !buffer_ || !home_->io.usable()) return;
    home_->sweep();
    if (!job->terminal()) home_->orphans.push_back({job, std::move(*buffer_)});
  }

  bool look() {
    if (!job->terminal()) return false;
    buffer_.reset();
    return true;
  }
  bool wait(std::int64_t timeout_ms) {
    if (look()) return true;
    {
      nb::gil_scoped_release release;
      job->wait(timeout_ms);
    }
    return look();
  }
  void notify() {
    if (home_->io.usable()) job->notify(home_->io->completions());
  }
  const FileJob& ended() const {
    if (!job->terminal()) throw std::runtime_error("the file job runs still");
    return *job;
  }

  std::shared_ptr<FileJob> job;

 private:
  FileIoRef home_;
  std::optional<Buffer> buffer_;
};

PyFileJob submit(PyFileIo& self, int fd, bool write, nb::handle memory, nb::handle memory_offsets,
                 nb::handle file_offsets, nb::handle lengths, std::int64_t deadline_ns,
                 bool checksum, bool may_be_cached) {
  static std::atomic<std::uint64_t> id{0};
  Buffer buffer(memory, !write);
  const ColumnArg<std::uint64_t> near(memory_offsets, "memory_offsets");
  const ColumnArg<std::uint64_t> far(file_offsets, "file_offsets");
  const ColumnArg<std::uint64_t> sizes(lengths, "lengths");
  std::shared_ptr<FileJob> job;
  {
    nb::gil_scoped_release release;
    const Range range{reinterpret_cast<std::byte*>(buffer.bytes()), buffer.size()};
    job = std::make_shared<FileJob>(
        ++id, FileRequest{fd, write, range, near, far, sizes, deadline_ns, checksum});
    if (const auto& io = self.handle->io; io.usable()) {
      io->submit(job, may_be_cached);
    } else {
      job->refuse(Status::kUnreachable,
                  "these files are the parent process's; make a new engine after fork");
    }
  }
  return {self.handle, std::move(job), std::move(buffer)};
}

}  // namespace

void bind_file(nb::module_& m) {
  nb::class_<PyFileJob>(m, "FileJob")
      .def_prop_ro("id", [](const PyFileJob& self) { return self.job->id; })
      .def_prop_ro("state", [](const PyFileJob& self) { return name_of(self.job->state()); })
      .def_prop_ro("terminal", &PyFileJob::look)
      .def_prop_ro("error", [](const PyFileJob& self) { return self.ended().error(); })
      .def_prop_ro(
          "status", [](const PyFileJob& self) { return to_array(self.ended().status()); },
          nb::rv_policy::move)
      .def_prop_ro(
          "crcs", [](const PyFileJob& self) { return to_array(self.ended().crc()); },
          nb::rv_policy::move)
      .def("wait", &PyFileJob::wait, "timeout_ms"_a)
      .def("notify", &PyFileJob::notify)
      .def("cancel", [](PyFileJob& self) { self.job->cancel(); });
  nb::class_<PyFileIo>(m, "FileIo")
      .def(nb::init<const std::string&, unsigned, unsigned, std::size_t>(), "backend"_a = "auto",
           "depth"_a = 32, "threads"_a = 4, "jobs_max"_a = 1024)
      .def_prop_ro("backend", [](const PyFileIo& self) { return self.handle->io->backend(); })
      .def_prop_ro("why_no_uring", [](const PyFileIo& self) { return self.handle->why; })
      .def_prop_ro("completion_fd",
                   [](const PyFileIo& self) { return self.handle->io->completions().fd(); })
      .def("completed", [](PyFileIo& self) { return self.handle->io->completions().drain(); })
      .def("submit", submit, "fd"_a, "write"_a, "memory"_a, "memory_offsets"_a, "file_offsets"_a,
           "lengths"_a, "deadline_ns"_a, "checksum"_a, "may_be_cached"_a)
      .def("close", [](PyFileIo& self) { self.handle->close(); });
}

}  // namespace moonpool
