// Horovod includes this header on a CPU too, where it uses nothing of it; TensorFlow 2.20 has it elsewhere.
#if HAVE_GPU
#include <xla/service/custom_call_target_registry.h>
#endif
