# streams.pl: does the table of events at the head of train_gpt2.cu have every call that records an
# event or waits for one, and nothing else? Prints each difference. A row of the table is a line of four
# cells, two blanks or more apart: an event, the streams that record it, what it says, who waits.
# usage: perl dev/test/sources/streams.pl [FILE...]   (the sources; the table is in the first)
use strict;
use warnings;

my %stream = (compute => 'compute', sums => 'sums', out => 'out', flush => 'flush', fetch => 'fetch',
              back => 'back', update => 'update', weights_in => 'weights',
              inputs_link => 'inputs', 'host.stream' => 'host',
              'zero->stream' => 'ranks', pack => 'pack');
my %function = (weights_event => 'gathered : weight_rooms.full',
                gradient_event => 'reduced : grad_rooms.full');
my $streams = join '|', map { quotemeta } sort keys %stream;
my $names = join '|', values %stream, 'main';
my (%code, %table, %field, @body, @uploads);

# The streams that an expression names, by itself, by a variable of its function, or by a field.
sub streams_of {
    my ($text, %seen) = @_;
    my @found = map { $stream{$_} } $text =~ /(?:->|\b(?=zero))($streams)\b(?!\.)/g;
    for my $name ($text =~ /(?<![>.\w])([a-z]\w*)\b(?!->|\()/g) {
        next if $seen{$name}++;
        push @found, streams_of($_, %seen) for map { /(?<![>.\w])\Q$name\E = ([^;]*);/ ? $1 : () } @body;
    }
    push @found, map { streams_of($_, %seen) } @{$field{$_}} for grep { $field{$_} } $text =~ /->(\w+)/g;
    return @found;
}

sub events_of {
    my ($text) = @_;
    $text =~ s/(\w+)\(g, \w+\)/$function{$1}/g;
    1 while $text =~ s/\[[^\[\]]*\]//g;
    return map { /(\w+)(?:\.|->)(full|free)\s*$/ ? "$1.$2" : /(\w+)\s*$/ ? $1 : () }
        split /:/, $text =~ s/.*\?//r;
}

sub note {
    my ($what, $event, @streams) = @_;
    for my $e (events_of($event)) { $code{"$e $what $_"} = 1 for @streams }
}

my $first = $ARGV[0];
my @lines;
while (<>) {
    next if $ARGV =~ /(queue|timeline|calibrate|choose)\.cuh/;  # the calls themselves; no step's
    push @lines, [$ARGV, $_];
    push @{$field{$1}}, $2 if /->((?:ready|freed)_stream) = ([^;]*);/;
    push @uploads, $1 if /^ .*\bupload\(g, .*, ([^,]*)\);/;
}
for (@lines) {
    my ($file, $line) = @$_;
    @body = () if $line =~ /^\S/;
    push @body, $line;
    push @body, map { "stream = $_;" } @uploads if $line =~ /^static void upload\(/;
    note('recorded in', $1, streams_of($2)) if $line =~ /\bevent_record\((.*), ([^,]*)\);/;
    note('waited for in', $2, streams_of($1)) if $line =~ /\bstream_wait\(([^,]*), (.*)\);/;
    note('waited for in', $1, 'main') if $line =~ /\bevent_wait\(([^()]*)\);/;
    next unless $file eq $first && $line =~ m{^//   \w};
    my ($event, $in, $says, $by, @more) = split /\s{2,}/, $line =~ s{^//\s+|\s+$}{}gr;
    next if !defined $by || @more || $event eq 'event';
    $event =~ s/\[.*//;
    $table{"$event recorded in $_"} = 1 for $in =~ /\b($names)\b/g;
    $table{"$event waited for in $_"} = 1 for $by =~ /\b($names)\b/g;
}
delete @code{grep { /^handover / } keys %code};  # order()
print "no table\n" unless %table;
print "not in the table: $_\n" for grep { !$table{$_} } sort keys %code;
print "not in the sources: $_\n" for grep { !$code{$_} } sort keys %table;
