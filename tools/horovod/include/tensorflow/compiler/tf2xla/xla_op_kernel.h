// Horovod includes this header on a CPU too, where it uses nothing of it; it would draw in the whole of XLA.
#if HAVE_GPU
#include_next <tensorflow/compiler/tf2xla/xla_op_kernel.h>
#endif
