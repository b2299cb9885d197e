// machine: what every benchmark says first, for those that are scripts.
#include "machine.h"

int main(void) {
    machine_describe();
    return 0;
}
