// xml.h: is a picture XML, as far as those who draw here can get it wrong?
#ifndef TIDE_XML_H
#define TIDE_XML_H
#include <string.h>

// Returns the number of tags; 0 if an element is not closed.
static size_t xml_tags(const char *s) {
    const char *open[32];
    size_t depth = 0, tags = 0;
    for (; (s = strchr(s, '<')) != NULL; s++, tags++) {
        const char *end = strchr(s, '>');
        if (end == NULL || depth == 32) return 0;
        if (s[1] != '/') {
            if (end[-1] != '/') open[depth++] = s + 1;
        } else if (depth == 0 || strncmp(open[--depth], s + 2, (size_t)(end - s) - 2) != 0) {
            return 0;
        }
    }
    return depth == 0 ? tags : 0;
}
#endif
