#!/usr/bin/env python3
"""ptx2c.py: turns nvcc's PTX into C++ for the emulated GPU (dev/emu).

    python3 dev/ptx/ptx2c.py [--lines] [--only KERNEL] [--parts N] OUT FILE.ptx...

Each .entry becomes a C++ function that is one CUDA thread; kernels of several files that say the
same become one function. The functions are written to OUT.0.cpp ... OUT.(N-1).cpp, and to
OUT.table.cpp a table of (file's name without .ptx, kernel, function), which registry.cpp reads.
--only: kernels with KERNEL in the name. --lines: #line directives, so that gdb shows the PTX.
An instruction that no rule below matches as a whole, modifiers included, ends the translation with
its file, line and kernel.
"""
import argparse
import bisect
import functools
import os
import re

SIZE = {'pred': 1, 'b8': 8, 's8': 8, 'u8': 8, 'b16': 16, 's16': 16, 'u16': 16, 'b32': 32, 's32': 32,
        'u32': 32, 'f32': 32, 'b64': 64, 's64': 64, 'u64': 64, 'f64': 64}
COORDINATE = re.compile(r'%(tid|ntid|ctaid|nctaid)\.([xyz])$')
BUILTIN = {'tid': 'threadIdx', 'ntid': 'blockDim', 'ctaid': 'blockIdx', 'nctaid': 'gridDim'}
OPERAND = re.compile(r'(?:[^,{\[]|\{[^}]*\}|\[[^\]]*\])+')


class Refused(Exception):
    pass


def unsigned(ty):
    return 'bool' if ty == 'pred' else f'uint{SIZE[ty]}_t'


def c_type(ty):
    if ty[0] == 'f':
        return 'float' if ty == 'f32' else 'double'
    return ('' if ty[0] == 's' else 'u') + f'int{SIZE[ty]}_t'


def split(text):
    """Splits operands at commas outside brackets."""
    return [x.strip() for x in OPERAND.findall(text)]


def parts(vector):
    """Gives the operands in {...}, or the one that is there."""
    return split(vector[1:-1]) if vector.startswith('{') else [vector]


@functools.cache
def reg(o):
    """Gives the C++ name of a register or label."""
    return re.sub(r'\W', '_', o.lstrip('%'))


@functools.cache
def rule_of(op):
    """Gives the rule of an instruction and what its pattern's brackets matched, or (None, None)."""
    for pattern, rule in RULES:
        match = pattern.fullmatch(op)
        if match:
            return rule, match.groups()
    return None, None


class Kernel:
    def __init__(self, name, where):
        self.name, self.where = name, where
        self.params, self.regs, self.local, self.shared = {}, {}, {}, {}
        self.windows, self.code, self.barriers, self.bytes = [], [], 0, 0

    def is_reg(self, o):
        return reg(o) in self.regs and not COORDINATE.match(o)

    def get(self, o, ty):
        """Gives the C++ expression of an operand read as type ty."""
        if o.startswith('!') and ty == 'pred':
            return '!' + self.get(o[1:], ty)
        match = COORDINATE.match(o)
        if match:
            raw = f'{BUILTIN[match[1]]}.{match[2]}'
        elif self.is_reg(o):
            raw = reg(o)
        elif o == '%laneid':
            raw = 'emu_lane()'
        elif re.fullmatch(r'0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}', o):
            raw = '0x' + o[2:] + ('u' if len(o) == 10 else 'ull')
        elif re.fullmatch(r'-?(0x[0-9a-fA-F]+|\d+)U?', o):
            raw = f'{o.rstrip("U")}{"ull" if not o.startswith("-") else "ll"}'
        elif o in self.shared:
            if o not in self.windows:
                self.windows.append(o)
            raw = f'{self.windows.index(o) + 1}u << 24'
        elif o in self.local:
            raw = f'(uintptr_t){o}'
        elif o in self.params:
            raw = f'(uintptr_t)(param + {self.params[o]})'
        else:
            raise Refused(f'unknown operand {o}')
        if ty == 'pred':
            return f'(bool)({raw})'
        if ty[0] == 'f':
            return f'{ty.upper()}({raw})'
        return f'({c_type(ty)})({raw})'

    def set(self, d, value, ty):
        """Gives the statement that assigns a value of type ty to register d."""
        if d == '_':
            return ''
        if not self.is_reg(d):
            raise Refused(f'unknown register {d}')
        if ty == 'pred':
            return f'{reg(d)} = {value};'
        if ty[0] == 'f':
            return f'{reg(d)} = BITS(({c_type(ty)})({value}));'
        return f'{reg(d)} = ({c_type(ty)})({value});'  # a signed one is extended

    def address(self, o, space, n):
        """Gives the pointer to n bytes at [register or variable + offset]."""
        match = re.fullmatch(r'\[\s*([%$\w]+)\s*(?:\+\s*(-?\d+))?\s*\]', o)
        if not match:
            raise Refused(f'unknown address {o}')
        base, offset = match[1], match[2] or '0'
        if space == 'param' and base in self.params:
            return f'param + {self.params[base]} + ({offset})'
        if space == 'shared':
            return f'SHARED({self.get(base, "u32")} + ({offset}), {n})'
        return f'AT({self.get(base, "u64")} + ({offset}), {n})'

    def declare(self, s):
        match = re.fullmatch(r'\.reg \.(\w+) (.*)', s)
        if match:
            for r in split(match[2]):
                many = re.fullmatch(r'(%?[\w$]+)<(\d+)>', r)
                for n in [f'{many[1]}{i}' for i in range(int(many[2]))] if many else [r]:
                    self.regs[reg(n)] = match[1]
            return True
        match = re.fullmatch(r'\.(shared|local) \.align (\d+) \.b8 ([\w$]+)\[(\d+)\]', s)
        if match and match[1] == 'shared':
            self.shared[match[3]] = match[4]
        elif match:
            self.local[match[3]] = f'alignas({match[2]}) char {match[3]}[{match[4]}];'
        return bool(match) or s.startswith('.pragma')

    def statement(self, s):
        if s.startswith('.'):
            if not self.declare(s):
                raise Refused(f'unknown directive {s}')
            return ''
        guard = re.match(r'@(!?)(%?\w+) ', s)
        if guard:
            s = s[guard.end():]
        op, _, rest = s.partition(' ')
        rule, modifiers = rule_of(op)
        if rule is None:
            raise Refused(f'unknown instruction {s}')
        out = rule(self, split(rest), *modifiers)
        return f'if ({guard[1]}{reg(guard[2])}) {{ {out} }}' if guard else out

    def body(self, lines):
        """Gives the C++ function but for its name."""
        out = ['(const char *param) {', '    (void)param;']
        by_type = {}
        for r, ty in self.regs.items():
            by_type.setdefault(unsigned(ty), []).append(r)
        for ty, names in by_type.items():
            out += [f'    {ty} {", ".join(names[i:i + 16])};' for i in range(0, len(names), 16)]
        out += [f'    {x}' for x in self.local.values()]
        out += [f'    Window window[{len(self.windows) + 1}] = {{}};', '    (void)window;']
        for i, name in enumerate(self.windows, 1):
            if self.shared[name] is None:
                out.append(f'    window[{i}] = ptx_dynamic_shared();')
            else:
                out.append('    { static char tag; '
                           f'window[{i}] = ptx_shared(&tag, {self.shared[name]}, "{name}"); }}')
        for line, text in self.code:
            out += [f'#line {line} "{self.where}"'] * lines + ['    ' + text]
        return '\n'.join(out) + '\n}\n'


# --- the instructions
# A rule takes the kernel, the operands, and what the brackets of its pattern matched; it gives C++.

INT = '([us](?:16|32|64))'
FLOAT = '(f32|f64)'
DATA = '((?:[usb](?:8|16|32|64))|f32|f64)'
SIGN = {'add': '+', 'sub': '-', 'mul': '*', 'div': '/', 'rem': '%', 'and': '&', 'or': '|',
        'xor': '^', 'eq': '==', 'ne': '!=', 'lt': '<', 'le': '<=', 'gt': '>', 'ge': '>='}
UNORDERED = {'neu': '{x} != {y}', 'ltu': '!({x} >= {y})', 'leu': '!({x} > {y})',
             'gtu': '!({x} <= {y})', 'geu': '!({x} < {y})', 'nan': '{x} != {x} || {y} != {y}',
             'num': '{x} == {x} && {y} == {y}'}
ROUND = {'n': 'std::nearbyint', 'z': 'std::trunc', 'm': 'std::floor', 'p': 'std::ceil'}
MODE = {'z': 'FE_TOWARDZERO', 'm': 'FE_DOWNWARD', 'p': 'FE_UPWARD'}


def u(ty):
    """Gives the unsigned type of the same width."""
    return f'u{SIZE[ty]}'


def mov(k, a, ty):
    bits = 'pred' if ty == 'pred' else f'b{SIZE[ty]}'
    to, source = parts(a[0]), parts(a[1])
    n = SIZE[ty] // max(len(to), len(source))
    if len(to) > 1:
        return ' '.join(k.set(d, f'{k.get(a[1], bits)} >> {n * i}', f'b{n}')
                        for i, d in enumerate(to))
    if len(source) > 1:
        return k.set(a[0], ' | '.join(f'({unsigned(ty)}){k.get(x, f"b{n}")} << {n * i}'
                                      for i, x in enumerate(source)), bits)
    return k.set(a[0], k.get(a[1], bits), bits)


def ld(k, a, space, count, ty):
    to, n, ty = parts(a[0]), SIZE[ty] // 8, ty.replace('f', 'b')
    loads = (k.set(d, f'LOAD<{c_type(ty)}>(q + {n * i})', ty) for i, d in enumerate(to))
    return f'{{ const char *q = {k.address(a[1], space, n * len(to))}; {" ".join(loads)} }}'


def st(k, a, space, count, ty):
    values, n = parts(a[1]), SIZE[ty] // 8
    stores = (f'STORE(q + {n * i}, {k.get(x, f"b{8 * n}")});' for i, x in enumerate(values))
    return f'{{ char *q = {k.address(a[0], space, n * len(values))}; {" ".join(stores)} }}'


def wide(k, a, op, ty):
    double = f'{ty[0]}{2 * SIZE[ty]}'
    more = f' + {k.get(a[3], double)}' if op == 'mad' else ''
    return k.set(a[0], f'({c_type(double)}){k.get(a[1], ty)} * {k.get(a[2], ty)}{more}', double)


def fma(k, a, mode, ty):
    x = ', '.join(k.get(v, ty) for v in a[1:])
    return k.set(a[0], f'std::fma({x})' if mode == 'n' else f'FMA({x}, {MODE[mode]})', ty)


def shr(k, a, ty):
    n, top, x = k.get(a[2], 'u32'), SIZE[ty] - 1, k.get(a[1], ty)
    return k.set(a[0], f'{x} >> std::min<uint32_t>({n}, {top})' if ty[0] == 's'
                 else f'{n} <= {top} ? {x} >> {n} : 0', ty)


def setp(k, a, how, combine, ty):
    x, y = k.get(a[1], ty), k.get(a[2], ty)
    value = UNORDERED[how].format(x=x, y=y) if how in UNORDERED else f'({x} {SIGN[how]} {y})'
    if how == 'ne' and ty[0] == 'f':
        value = f'({x} < {y} || {x} > {y})'
    if combine:
        value += f' {SIGN[combine]} {k.get(a[3], "pred")}'
    return k.set(a[0], value, 'pred')


def special(k, a, op, ftz, ty):
    ftz = 'FTZ' if ftz else ''
    x = f'{ftz}({k.get(a[1], ty)})'
    y = {'rcp': f'1 / {x}', 'rsqrt': f'1 / std::sqrt({x})', 'ex2': f'std::exp2({x})',
         'lg2': f'std::log2({x})'}.get(op, f'std::{op}({x})')
    return k.set(a[0], f'{ftz}({y})', ty)


def bar(k, a, popc):
    k.barriers += 1
    if a.pop(1 if popc else 0) != '0':
        raise Refused('a barrier that is not number 0')
    value = k.get(a[1], 'pred') if popc else '0'
    call = f'emu_barrier({value}, "barrier {k.barriers} of the PTX")'
    return k.set(a[0], call, 'u32') if popc else call + ';'


def shfl(k, a, mode):
    d = a[0].split('|')
    x = ', '.join(k.get(v, 'u32') for v in a[1:])
    there = k.set(d[1], 'there', 'pred') if len(d) > 1 else ''
    return f'{{ bool there; {k.set(d[0], f"SHUFFLE_{mode}({x}, &there)", "b32")} {there} }}'


def vote(k, a, how):
    call = f'__{how or "ballot"}_sync({k.get(a[2], "u32")}, {k.get(a[1], "pred")})'
    return k.set(a[0], call, 'pred' if how else 'b32')


def cp_async(k, a):
    n = int(a[2], 0)
    zeros = f'{n} - {k.get(a[3], "u32")}' if len(a) > 3 else '0'
    to, source = k.address(a[0], 'shared', n), k.address(a[1], 'global', n)
    return f'emu_copy_async({to}, {source}, {n}, {zeros});'


def ldmatrix(k, a, trans):
    sets = ' '.join(k.set(d, f'q[{i}]', 'b32') for i, d in enumerate(parts(a[0])))
    name = 'ldmatrix_x4_trans' if trans else 'ldmatrix_x4'
    return f'{{ uint32_t q[4]; emu::{name}(q, {k.address(a[1], "shared", 16)}); {sets} }}'


def mma(k, a, ty):
    c = ', '.join(k.get(v, 'f32') for v in parts(a[3]))
    x, y = (', '.join(k.get(v, 'b32') for v in parts(o)) for o in a[1:3])
    sets = ' '.join(k.set(d, f'd[{i}]', 'f32') for i, d in enumerate(parts(a[0])))
    return (f'{{ float d[4] = {{{c}}}; const uint32_t x[4] = {{{x}}}, y[2] = {{{y}}}; '
            f'emu::mma_m16n8k16_{ty.split(".")[0]}(d, x, y); {sets} }}')


def half_pair(k, a, to):
    high, low = (f'emu::f32_to_{to}({k.get(x, "f32")})' for x in a[1:])
    return k.set(a[0], f'(uint32_t){high} << 16 | {low}', 'b32')


RULES = [(re.compile(pattern), f) for pattern, f in {
    'ret|exit': lambda k, a: 'return;',
    r'bra(?:\.uni)?': lambda k, a: f'goto {reg(a[0])};',
    r'mov\.(pred|[usb]16|[usb]32|[usb]64|f32|f64)': mov,
    r'ld\.(param|global|shared|local)(?:\.nc)?(?:\.v([24]))?\.' + DATA: ld,
    r'st\.(global|shared|local)(?:\.v([24]))?\.' + DATA: st,
    r'cvta\.(?:to\.global|local)\.u64': lambda k, a: mov(k, a, 'u64'),  # one address space here
    r'(add|sub)\.' + INT: lambda k, a, op, ty: k.set(
        a[0], f'{k.get(a[1], u(ty))} {SIGN[op]} {k.get(a[2], u(ty))}', ty),
    r'(div|rem)\.' + INT + r'|(add|sub|mul|div)(?:\.rn)?\.' + FLOAT:
        lambda k, a, i, int_ty, f, ty: k.set(a[0], f'{k.get(a[1], int_ty or ty)} {SIGN[i or f]} '
                                             + k.get(a[2], int_ty or ty), int_ty or ty),
    r'mul\.lo\.' + INT:
        lambda k, a, ty: k.set(a[0], f'(uint64_t){k.get(a[1], ty)} * {k.get(a[2], u(ty))}', ty),
    r'mad\.lo\.' + INT: lambda k, a, ty: k.set(
        a[0], f'(uint64_t){k.get(a[1], ty)} * {k.get(a[2], u(ty))} + {k.get(a[3], u(ty))}', ty),
    r'(mul|mad)\.wide\.([us](?:16|32))': wide,
    r'mul\.hi\.(u32|u64)': lambda k, a, ty: k.set(
        a[0], f'(unsigned __int128){k.get(a[1], ty)} * {k.get(a[2], ty)} >> {SIZE[ty]}', ty),
    r'(min|max)\.' + INT:
        lambda k, a, op, ty: k.set(a[0], f'std::{op}({k.get(a[1], ty)}, {k.get(a[2], ty)})', ty),
    r'(min|max)\.' + FLOAT:
        lambda k, a, op, ty: k.set(a[0], f'std::f{op}({k.get(a[1], ty)}, {k.get(a[2], ty)})', ty),
    r'fma\.r([nzmp])\.' + FLOAT: fma,
    r'neg\.' + FLOAT:
        lambda k, a, ty: k.set(a[0], f'{k.get(a[1], u(ty))} ^ 1ull << {SIZE[ty] - 1}', u(ty)),
    r'abs\.' + FLOAT:
        lambda k, a, ty: k.set(a[0], f'{k.get(a[1], u(ty))} & ~(1ull << {SIZE[ty] - 1})', u(ty)),
    r'neg\.' + INT: lambda k, a, ty: k.set(a[0], f'0 - {k.get(a[1], u(ty))}', ty),
    r'(and|or|xor)\.(pred|b16|b32|b64)':
        lambda k, a, op, ty: k.set(a[0], f'{k.get(a[1], ty)} {SIGN[op]} {k.get(a[2], ty)}', ty),
    r'not\.(b16|b32|b64)': lambda k, a, ty: k.set(a[0], f'~{k.get(a[1], ty)}', ty),
    r'not\.pred': lambda k, a: k.set(a[0], f'!{k.get(a[1], "pred")}', 'pred'),
    r'shl\.(b16|b32|b64)': lambda k, a, ty: k.set(
        a[0], f'SHL({k.get(a[1], ty)}, {k.get(a[2], "u32")})', ty),
    r'shr\.([us](?:16|32|64))': shr,
    r'bfi\.(b32|b64)': lambda k, a, ty: k.set(
        a[0], f'BFI({k.get(a[1], ty)}, {k.get(a[2], ty)}, {reg(a[3])}, {reg(a[4])})', ty),
    r'prmt\.b32': lambda k, a: k.set(
        a[0], f'PRMT({", ".join(k.get(x, "b32") for x in a[1:])})', 'b32'),
    r'setp\.(\w\w|neu|ltu|leu|gtu|geu|nan|num)(?:\.(and|or|xor))?\.' + DATA: setp,
    r'selp\.' + DATA: lambda k, a, ty: k.set(
        a[0], f'{k.get(a[3], "pred")} ? {k.get(a[1], u(ty))} : {k.get(a[2], u(ty))}', u(ty)),
    r'cvt\.([us](?:8|16|32|64))\.([us](?:8|16|32|64))':
        lambda k, a, to, ty: k.set(a[0], k.get(a[1], ty), to),
    r'cvt\.rn\.(f32|f64)\.' + INT: lambda k, a, to, ty: k.set(a[0], k.get(a[1], ty), to),
    r'cvt\.(?:rn\.(f32)\.f64|(f64)\.f32)': lambda k, a, narrow, widen: k.set(
        a[0], k.get(a[1], 'f64' if narrow else 'f32'), narrow or widen),
    r'cvt\.r([nzmp])i\.(f32|f64)\.(?:f32|f64)':
        lambda k, a, mode, ty: k.set(a[0], f'{ROUND[mode]}({k.get(a[1], ty)})', ty),
    r'cvt\.r([nzmp])i\.([us](?:32|64))\.' + FLOAT: lambda k, a, mode, to, ty: k.set(
        a[0], f'TO_INT<{c_type(to)}>({ROUND[mode]}({k.get(a[1], ty)}))', to),
    r'cvt\.sat\.f32\.f32': lambda k, a: k.set(a[0], f'__saturatef({k.get(a[1], "f32")})', 'f32'),
    r'cvt\.rn\.(bf16|f16)\.f32':
        lambda k, a, to: k.set(a[0], f'emu::f32_to_{to}({k.get(a[1], "f32")})', 'b16'),
    r'cvt\.rn\.(bf16|f16)x2\.f32': half_pair,
    r'cvt\.f32\.f16': lambda k, a: k.set(a[0], f'emu::f16_to_f32({k.get(a[1], "b16")})', 'f32'),
    r'cvt\.f32\.bf16': lambda k, a: mov(k, [a[0], f'{{0, {a[1]}}}'], 'b32'),  # as on sm_80
    r'(ex2|rcp|lg2|rsqrt|sqrt|sin|cos)\.(?:approx|rn)(\.ftz)?\.' + FLOAT: special,
    r'bar\.warp\.sync':
        lambda k, a: f'emu_warp_collective({k.get(a[0], "u32")}, nullptr, nullptr, true);',
    r'bar\.(?:sync|red\.(popc)\.u32)': bar,
    r'shfl\.sync\.(bfly|idx)\.b32': shfl,
    r'vote\.sync\.(?:(any|all)\.pred|ballot\.b32)': vote,
    r'cp\.async\.(?:ca|cg)\.shared\.global': cp_async,
    r'cp\.async\.commit_group': lambda k, a: 'emu_copy_commit();',
    r'cp\.async\.wait_group': lambda k, a: f'emu_copy_wait({a[0]});',
    r'ldmatrix\.sync\.aligned\.m8n8\.x4(\.trans)?\.shared\.b16': ldmatrix,
    r'mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.(bf16\.bf16|f16\.f16)\.f32': mma,
}.items()]


# --- files

TOKEN = re.compile(r'\s*(?:([{}])|([$\w]+):|([^;{}]*(?:\{[^;{}]*\}[^;{}]*)*);)')
PARAM = re.compile(r'\.param (?:\.align (\d+) )?\.(\w+) (?:\.ptr (?:\.\w+ )?(?:\.align \d+ )?)?'
                   r'([\w$]+)(?:\[(\d+)\])?')
ENTRY = re.compile(r'\.entry\s+([\w$]+)\s*\(([^)]*)\)([^{]*)\{')


def translate(k, text, at, lines, parameters):
    """Translates a kernel's body, which begins at `at`."""
    depth = 1
    try:
        for p in split(' '.join(parameters.split())):
            m = PARAM.fullmatch(p)
            if not m:
                raise Refused(f'unknown parameter {p}')
            n = SIZE[m[2]] // 8
            align = int(m[1] or n)
            k.params[m[3]] = (k.bytes + align - 1) // align * align
            k.bytes = k.params[m[3]] + n * int(m[4] or 1)
        while depth > 0:
            m = TOKEN.match(text, at)
            if not m:
                raise Refused('unknown text ' + text[at:at + 40].strip())
            at = m.end()
            if m[1]:
                depth += 1 if m[1] == '{' else -1
                cpp = m[1] if depth > 0 else ''
            elif m[2]:
                cpp = f'{reg(m[2])}:;'
            else:
                cpp = k.statement(' '.join(m[3].split()))
            if cpp:
                k.code.append((bisect.bisect_left(lines, at) + 1, cpp))
    except Refused as why:
        line = bisect.bisect_left(lines, at) + 1
        raise SystemExit(f'ptx2c: {k.where} line {line}, kernel {k.name}: {why}')


def read(path, only, known):
    """Gives the kernels of a file; those whose text is known already, as they are known."""
    text = re.sub(r'//[^\n]*|\t\.loc\s[^\n]*', '', open(path).read())
    text = re.sub(r'_INTERNAL_[0-9a-f]+', '', text)  # it differs from file to file
    lines = [m.start() for m in re.finditer('\n', text)]
    shared = {m[1]: m[2] or None for m in re.finditer(
        r'^(?:\.extern )?\.shared \.align \d+ \.b8 ([\w$]+)\[(\d*)\];', text, re.M)}
    kernels = []
    for entry in ENTRY.finditer(text):
        if only not in entry[1]:
            continue
        body = text[entry.start(2):text.index('\n}', entry.end())]
        body = re.sub(r'cvt\.f32\.bf16\s+(%\w+), (%\w+);', r'mov.b32 \1, {0,\2};', body)  # sm_80's
        body = ' '.join(re.sub(r'\$L__BB\d+_', '$', body.replace(entry[1], '')).split())
        if body not in known:
            known[body] = Kernel(entry[1], os.path.abspath(path))
            known[body].shared.update(shared)
            translate(known[body], text, entry.end(), lines, entry[2])
        kernels.append((entry[1], known[body]))
    return kernels


def main():
    p = argparse.ArgumentParser(usage=__doc__)
    p.add_argument('--lines', action='store_true')
    p.add_argument('--only', default='')
    p.add_argument('--parts', type=int, default=1)
    p.add_argument('out')
    p.add_argument('files', nargs='+')
    o = p.parse_args()
    known, rows = {}, []
    for path in o.files:
        name = os.path.basename(path).removesuffix('.ptx')
        for kernel, k in read(path, o.only, known):
            n = list(known.values()).index(k)
            rows.append(f'    {{"{name}", "{kernel}", ptx_{n}, {k.bytes}}},\n')
    sizes = [0] * o.parts
    files = [open(f'{o.out}.{i}.cpp', 'w') for i in range(o.parts)]
    for f in files:
        f.write('#include "ptx.h"\n')
    for n, k in sorted(enumerate(known.values()), key=lambda x: -len(x[1].code)):
        i = sizes.index(min(sizes))
        sizes[i] += len(k.code)
        files[i].write(f'\n// {k.name}\nvoid ptx_{n}{k.body(o.lines)}')
    for f in files:
        f.close()
    with open(f'{o.out}.table.cpp', 'w') as f:
        f.write('#include "ptx.h"\n')
        f.writelines(f'void ptx_{n}(const char *param);\n' for n in range(len(known)))
        f.write(f'const PtxKernel ptx_kernels[] = {{\n{"".join(rows)}    {{}}\n}};\n')
    print(f'{len(rows)} kernels in {len(o.files)} files; {len(known)} differ: {sum(sizes)} lines')


main()
