// User objects: what graphs keep alive.
#include <algorithm>

#include "graphs.hpp"

namespace softcuda {

UserReference::~UserReference() {
  const Lock lock(machine().mutex);
  release(object, 1);
}

void release(UserObject* object, unsigned count) {
  object->references -= count;
  if (object->references) return;
  machine().user_objects.erase(object);
  static auto* const thread = new std::shared_ptr<Stream>(std::make_shared<Stream>(nullptr, 0, 0));
  (*thread)->submit(host_work(object->destroy, object->pointer));
  delete object;
}

}  // namespace softcuda

using namespace softcuda;

namespace {

UserObject* object_of(CUuserObject handle) {
  auto* const object = reinterpret_cast<UserObject*>(handle);
  return machine().user_objects.count(object) ? object : nullptr;
}

}  // namespace

extern "C" {

CUresult cuUserObjectCreate(CUuserObject* result, void* pointer, CUhostFn destroy, unsigned references,
                            unsigned flags) {
  CALL(cuUserObjectCreate);
  if (result == nullptr || destroy == nullptr || references == 0 || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
    return CUDA_ERROR_INVALID_VALUE;
  const Lock lock(machine().mutex);
  auto* const object = new UserObject{pointer, destroy, references};
  machine().user_objects.insert(object);
  *result = reinterpret_cast<CUuserObject>(object);
  return CUDA_SUCCESS;
}

CUresult cuUserObjectRetain(CUuserObject handle, unsigned count) {
  CALL(cuUserObjectRetain);
  const Lock lock(machine().mutex);
  UserObject* const object = object_of(handle);
  if (object == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  object->references += count;
  return CUDA_SUCCESS;
}

CUresult cuUserObjectRelease(CUuserObject handle, unsigned count) {
  CALL(cuUserObjectRelease);
  const Lock lock(machine().mutex);
  UserObject* const object = object_of(handle);
  if (object == nullptr || count == 0 || count > object->references) return CUDA_ERROR_INVALID_VALUE;
  release(object, count);
  return CUDA_SUCCESS;
}

CUresult cuGraphRetainUserObject(CUgraph handle, CUuserObject user, unsigned count, unsigned flags) {
  CALL(cuGraphRetainUserObject);
  const Lock lock(machine().mutex);
  Graph* const graph = graph_of(handle);
  UserObject* const object = object_of(user);
  if (graph == nullptr || object == nullptr || count == 0 || flags > CU_GRAPH_USER_OBJECT_MOVE)
    return CUDA_ERROR_INVALID_VALUE;
  for (unsigned at = 0; at < count; ++at) graph->objects.push_back(std::make_shared<UserReference>(object));
  if (flags == CU_GRAPH_USER_OBJECT_MOVE) release(object, count);
  return CUDA_SUCCESS;
}

CUresult cuGraphReleaseUserObject(CUgraph handle, CUuserObject user, unsigned count) {
  CALL(cuGraphReleaseUserObject);
  const Lock lock(machine().mutex);
  Graph* const graph = graph_of(handle);
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto& objects = graph->objects;
  const UserObject* const object = object_of(user);
  const auto is_it = [&](const auto& each) { return each->object == object; };
  if (object == nullptr || std::count_if(objects.begin(), objects.end(), is_it) < static_cast<long>(count))
    return CUDA_ERROR_INVALID_VALUE;
  for (unsigned at = 0; at < count; ++at) objects.erase(std::find_if(objects.begin(), objects.end(), is_it));
  return CUDA_SUCCESS;
}
}
