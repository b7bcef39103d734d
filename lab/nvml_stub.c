/* A stand-in for NVIDIA's libnvidia-ml.so.1, for machines without a GPU. It is NOT NVIDIA's library and measures nothing:
 * it repeats what a folder says, so that the real pynvml runs. Built and driven by lab/nvml_stub.py.
 *
 * $RELIGHT_NVML_STUB names the folder. `state` holds one fact a line and is read anew when it was replaced:
 *   driver missing                  nvmlInit fails as without a driver
 *   hang CALL                       that call blocks until the line is gone
 *   error CALL CODE                 that call fails with the code
 *   gpu I KEY VALUE                 KEY of GPU I: bus, uuid, serial, model, power_mw, utilisation, temperature, sm_clock, throttle, events,
 *                                   pid (repeatable), lost, absent, field:ID (an NVML_FI_* value)
 * What is not said is "not supported". `events` gets one line `I TYPE DATA` for each event, appended.
 *
 * Structures and codes as declared in NVIDIA's public nvml.h and in pynvml.
 */
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID = 2, NOT_SUPPORTED = 3, TOO_SMALL = 7, NO_DRIVER = 9, TIMED_OUT = 10, LOST = 15 };
enum { MAX_GPUS = 32, MAX_FACTS = 4096, UNSIGNED_LONG_LONG = 3 };

typedef int Return;
typedef struct { int index; } *Device;
typedef struct { long offset; unsigned long long wanted[MAX_GPUS]; } *EventSet;
typedef struct { int gpu; char key[32]; char value[64]; } Fact;
typedef struct {
  char legacy[16];
  unsigned domain, bus, device, pci_device, pci_subsystem;
  char id[32];
} Pci;
typedef struct { unsigned gpu, memory; } Utilisation;
typedef struct { unsigned pid; unsigned long long memory; unsigned instance, compute_instance; } ProcessInfo;
typedef struct { Device device; unsigned long long type, data; unsigned instance, compute_instance; } EventData;
typedef struct {
  unsigned id, scope;
  long long at, latency;
  unsigned type;
  Return result;
  union { unsigned long long ull; double d; } value;
} FieldValue;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Fact facts[MAX_FACTS];
static int known;
static struct stat seen; /* of the state that was read */
static struct { int index; } devices[MAX_GPUS];

static void path_of(char *path, size_t size, const char *name) {
  const char *folder = getenv("RELIGHT_NVML_STUB");
  snprintf(path, size, "%s/%s", folder ? folder : "/nonexistent", name);
}

/* Under the lock. The file is replaced by rename; a freed inode comes back, so its time counts too. */
static void refresh(void) {
  char path[4096], line[256], word[32];
  struct stat now;
  path_of(path, sizeof path, "state");
  if (stat(path, &now) != 0) { known = 0; memset(&seen, 0, sizeof seen); return; }
  if (now.st_ino == seen.st_ino && !memcmp(&now.st_mtim, &seen.st_mtim, sizeof now.st_mtim)) return;
  FILE *file = fopen(path, "r");
  if (!file) return;
  known = 0;
  while (known < MAX_FACTS && fgets(line, sizeof line, file)) {
    Fact *fact = &facts[known];
    fact->gpu = -1;
    fact->value[0] = 0;
    if (sscanf(line, "gpu %d %31s %63s", &fact->gpu, fact->key, fact->value) == 3) known++;
    else if (sscanf(line, "driver %63s", fact->value) == 1) { strcpy(fact->key, "driver"); known++; }
    else if (sscanf(line, "hang %63s", fact->value) == 1) { strcpy(fact->key, "hang"); known++; }
    else if (sscanf(line, "error %31s %63s", word, fact->value) == 2) { strcpy(fact->key, word); known++; }
  }
  seen = now;
  fclose(file);
}

/* Under the lock: the n-th value of a key, or NULL. */
static const char *find(int gpu, const char *key, int n) {
  for (int i = 0; i < known; i++)
    if (facts[i].gpu == gpu && !strcmp(facts[i].key, key) && n-- == 0) return facts[i].value;
  return NULL;
}

static int number(int gpu, const char *key, unsigned long long *value) {
  pthread_mutex_lock(&lock);
  refresh();
  const char *text = find(gpu, key, 0);
  if (text) *value = strtoull(text, NULL, 0);
  pthread_mutex_unlock(&lock);
  return text != NULL;
}

static int hangs(const char *call) {
  int found = 0;
  pthread_mutex_lock(&lock);
  refresh();
  for (int i = 0; i < known; i++) found |= !strcmp(facts[i].key, "hang") && !strcmp(facts[i].value, call);
  pthread_mutex_unlock(&lock);
  return found;
}

/* What every call does first. */
static Return enter(const char *call, int gpu) {
  unsigned long long value;
  while (hangs(call)) usleep(20000);
  if (number(-1, call, &value)) return (Return)value;
  return gpu >= 0 && number(gpu, "lost", &value) && value ? LOST : SUCCESS;
}

#define ENTER(gpu) do { Return entered = enter(__func__, gpu); if (entered != SUCCESS) return entered; } while (0)

static Return plain(const char *call, Device device, const char *key, unsigned *answer) {
  unsigned long long value;
  Return entered = enter(call, device->index);
  if (entered != SUCCESS) return entered;
  if (!number(device->index, key, &value)) return NOT_SUPPORTED;
  *answer = (unsigned)value;
  return SUCCESS;
}

Return nvmlInitWithFlags(unsigned flags) {
  (void)flags;
  ENTER(-1);
  pthread_mutex_lock(&lock);
  refresh();
  int missing = known == 0 || find(-1, "driver", 0) != NULL;
  pthread_mutex_unlock(&lock);
  return missing ? NO_DRIVER : SUCCESS;
}

Return nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(Return code) {
  switch (code) {
    case NOT_SUPPORTED: return "Not Supported";
    case NO_DRIVER: return "Driver Not Loaded";
    case TIMED_OUT: return "Timeout";
    case LOST: return "GPU is lost";
    default: return "Unknown Error";
  }
}

Return nvmlDeviceGetCount_v2(unsigned *count) {
  ENTER(-1);
  pthread_mutex_lock(&lock);
  refresh();
  for (*count = 0; *count < MAX_GPUS && find((int)*count, "bus", 0); (*count)++);
  pthread_mutex_unlock(&lock);
  return SUCCESS;
}

Return nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *device) {
  unsigned long long value;
  ENTER(-1);
  if (index >= MAX_GPUS) return INVALID;
  if (number((int)index, "absent", &value) && value) return LOST;
  devices[index].index = (int)index;
  *device = (Device)&devices[index];
  return SUCCESS;
}

Return nvmlDeviceGetPciInfo_v3(Device device, Pci *pci) {
  ENTER(device->index);
  memset(pci, 0, sizeof *pci);
  pthread_mutex_lock(&lock);
  refresh();
  const char *bus = find(device->index, "bus", 0);
  if (bus) sscanf(bus, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device);
  pthread_mutex_unlock(&lock);
  snprintf(pci->id, sizeof pci->id, "%08X:%02X:%02X.0", pci->domain, pci->bus, pci->device);
  return SUCCESS;
}

static Return word(const char *call, Device device, const char *key, char *text, unsigned size) {
  Return entered = enter(call, device->index);
  if (entered != SUCCESS) return entered;
  pthread_mutex_lock(&lock);
  refresh();
  const char *value = find(device->index, key, 0);
  if (value) snprintf(text, size, "%s", value);
  pthread_mutex_unlock(&lock);
  return value ? SUCCESS : NOT_SUPPORTED;
}

Return nvmlDeviceGetUUID(Device device, char *text, unsigned size) { return word(__func__, device, "uuid", text, size); }

Return nvmlDeviceGetSerial(Device device, char *text, unsigned size) {
  return word(__func__, device, "serial", text, size);
}

Return nvmlDeviceGetName(Device device, char *text, unsigned size) { return word(__func__, device, "model", text, size); }

Return nvmlDeviceGetPowerUsage(Device device, unsigned *mw) { return plain(__func__, device, "power_mw", mw); }

Return nvmlDeviceGetUtilizationRates(Device device, Utilisation *rates) {
  rates->memory = 0;
  return plain(__func__, device, "utilisation", &rates->gpu);
}

Return nvmlDeviceGetTemperature(Device device, unsigned sensor, unsigned *celsius) {
  (void)sensor;
  return plain(__func__, device, "temperature", celsius);
}

Return nvmlDeviceGetClockInfo(Device device, unsigned type, unsigned *mhz) {
  (void)type;
  return plain(__func__, device, "sm_clock", mhz);
}

Return nvmlDeviceGetCurrentClocksEventReasons(Device device, unsigned long long *reasons) {
  ENTER(device->index);
  return number(device->index, "throttle", reasons) ? SUCCESS : NOT_SUPPORTED;
}

Return nvmlDeviceGetComputeRunningProcesses_v3(Device device, unsigned *count, ProcessInfo *infos) {
  unsigned room = *count, found = 0;
  ENTER(device->index);
  pthread_mutex_lock(&lock);
  refresh();
  for (const char *pid; (pid = find(device->index, "pid", (int)found)) != NULL; found++)
    if (infos && found < room) infos[found] = (ProcessInfo){(unsigned)strtoul(pid, NULL, 0), 0, ~0u, ~0u};
  pthread_mutex_unlock(&lock);
  *count = found;
  return found && (!infos || found > room) ? TOO_SMALL : SUCCESS;
}

Return nvmlDeviceGetFieldValues(Device device, int count, FieldValue *values) {
  char key[32];
  ENTER(device->index);
  for (int i = 0; i < count; i++) {
    snprintf(key, sizeof key, "field:%u", values[i].id);
    values[i].type = UNSIGNED_LONG_LONG;
    values[i].result = number(device->index, key, &values[i].value.ull) ? SUCCESS : NOT_SUPPORTED;
  }
  return SUCCESS;
}

Return nvmlDeviceGetSupportedEventTypes(Device device, unsigned long long *types) {
  ENTER(device->index);
  return number(device->index, "events", types) ? SUCCESS : NOT_SUPPORTED;
}

Return nvmlEventSetCreate(EventSet *set) {
  char path[4096];
  struct stat now;
  ENTER(-1);
  *set = calloc(1, sizeof **set);
  path_of(path, sizeof path, "events");
  if (stat(path, &now) == 0) (*set)->offset = now.st_size; /* only what comes after */
  return SUCCESS;
}

Return nvmlEventSetFree(EventSet set) { free(set); return SUCCESS; }

Return nvmlDeviceRegisterEvents(Device device, unsigned long long types, EventSet set) {
  ENTER(device->index);
  set->wanted[device->index] |= types;
  return SUCCESS;
}

static int next_event(EventSet set, EventData *data) {
  char path[4096], line[128];
  int gpu, found = 0;
  path_of(path, sizeof path, "events");
  FILE *file = fopen(path, "r");
  if (!file) return 0;
  fseek(file, set->offset, SEEK_SET);
  while (!found && fgets(line, sizeof line, file) && strchr(line, '\n')) {
    set->offset = ftell(file);
    found = sscanf(line, "%d %llu %llu", &gpu, &data->type, &data->data) == 3 && gpu >= 0 && gpu < MAX_GPUS &&
            (set->wanted[gpu] & data->type);
  }
  fclose(file);
  if (!found) return 0;
  devices[gpu].index = gpu;
  data->device = (Device)&devices[gpu];
  data->instance = data->compute_instance = ~0u;
  return 1;
}

Return nvmlEventSetWait_v2(EventSet set, EventData *data, unsigned timeout_ms) {
  struct timespec now;
  char path[4096], notice[4096];
  ENTER(-1);
  path_of(path, sizeof path, "");
  int watch = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
  inotify_add_watch(watch, path, IN_MODIFY | IN_MOVED_TO | IN_CREATE);
  clock_gettime(CLOCK_MONOTONIC, &now);
  long long end = now.tv_sec * 1000LL + now.tv_nsec / 1000000 + timeout_ms, left = timeout_ms;
  Return result = TIMED_OUT;
  for (;;) {
    if (next_event(set, data)) { result = SUCCESS; break; }
    if (left <= 0) break;
    struct pollfd ready = {watch, POLLIN, 0};
    if (poll(&ready, 1, (int)left) > 0 && read(watch, notice, sizeof notice) < 0) break;
    clock_gettime(CLOCK_MONOTONIC, &now);
    left = end - (now.tv_sec * 1000LL + now.tv_nsec / 1000000);
  }
  close(watch);
  return result;
}
