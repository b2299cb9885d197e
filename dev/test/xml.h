// xml.h: is a picture XML, as far as those who draw here can get it wrong?
#ifndef TIDE_XML_H
#define TIDE_XML_H
#include <string.h>

// Returns the number of tags; 0 if an element is not closed, or a quote, if a '&' begins no entity,
// or if there is another control character than a newline.
static size_t xml_tags(const char *s) {
    static const char *const entities[] = {"&amp;", "&lt;", "&gt;", "&#181;"};
    const char *open[32];
    size_t depth = 0, tags = 0;
    for (; *s != '\0'; s++) {
        bool entity = *s != '&';
        for (int i = 0; i < 4; i++) entity |= strncmp(s, entities[i], strlen(entities[i])) == 0;
        if (!entity || *s == '>' || ((unsigned char)*s < 32 && *s != '\n')) return 0;
        if (*s != '<') continue;
        const char *end = strchr(s, '>');
        size_t quotes = 0;
        for (const char *c = s; end != NULL && c < end; c++) quotes += *c == '"';
        if (end == NULL || quotes % 2 != 0 || depth == 32) return 0;
        if (s[1] == '/') {
            const size_t n = (size_t)(end - s) - 2;
            if (depth == 0 || strncmp(open[--depth], s + 2, n) != 0) return 0;
        } else if (end[-1] != '/') {
            open[depth++] = s + 1;
        }
        tags++;
        s = end;
    }
    return depth == 0 ? tags : 0;
}
#endif
