// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"runtime"
)

// sharedObject is the smallest ELF file that loaders and nvcdi take for a shared library: no code, only
// its SONAME. nvcdi reads that to make the links that programs look for, and ldconfig puts it in its
// cache.
func sharedObject(soname string) []byte {
	const headerSize, segmentSize, sectionSize, dynamicSize = 64, 56, 64, 16
	machine := elf.EM_X86_64
	if runtime.GOARCH == "arm64" {
		machine = elf.EM_AARCH64
	}

	// Layout: header, two segments, strings, dynamic section, section names, section headers.
	names := []byte("\x00" + soname + "\x00")
	sectionNames := []byte("\x00.dynstr\x00.dynamic\x00.shstrtab\x00")
	namesAt := uint64(headerSize + 2*segmentSize)
	dynamicAt := (namesAt + uint64(len(names)) + 7) &^ 7
	dynamic := []elf.Dyn64{
		{Tag: int64(elf.DT_SONAME), Val: 1},
		{Tag: int64(elf.DT_STRTAB), Val: namesAt},
		{Tag: int64(elf.DT_STRSZ), Val: uint64(len(names))},
		{Tag: int64(elf.DT_NULL)},
	}
	dynamicLength := uint64(len(dynamic) * dynamicSize)
	sectionNamesAt := dynamicAt + dynamicLength
	sectionsAt := (sectionNamesAt + uint64(len(sectionNames)) + 7) &^ 7
	size := sectionsAt + 4*sectionSize

	var out bytes.Buffer
	// Writing to a buffer does not fail.
	write := func(data any) { _ = binary.Write(&out, binary.LittleEndian, data) }
	pad := func(to uint64) { out.Write(make([]byte, to-uint64(out.Len()))) }

	header := elf.Header64{
		Type: uint16(elf.ET_DYN), Machine: uint16(machine), Version: uint32(elf.EV_CURRENT),
		Phoff: headerSize, Shoff: sectionsAt,
		Ehsize: headerSize, Phentsize: segmentSize, Phnum: 2, Shentsize: sectionSize, Shnum: 4, Shstrndx: 3,
	}
	copy(header.Ident[:], elf.ELFMAG)
	header.Ident[elf.EI_CLASS], header.Ident[elf.EI_DATA], header.Ident[elf.EI_VERSION] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)
	write(header)
	write([]elf.Prog64{
		{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R), Filesz: size, Memsz: size, Align: 0x1000},
		{Type: uint32(elf.PT_DYNAMIC), Flags: uint32(elf.PF_R), Off: dynamicAt, Vaddr: dynamicAt, Paddr: dynamicAt, Filesz: dynamicLength, Memsz: dynamicLength, Align: 8},
	})
	out.Write(names)
	pad(dynamicAt)
	write(dynamic)
	out.Write(sectionNames)
	pad(sectionsAt)
	write([]elf.Section64{
		{},
		{Name: 1, Type: uint32(elf.SHT_STRTAB), Flags: uint64(elf.SHF_ALLOC), Addr: namesAt, Off: namesAt, Size: uint64(len(names)), Addralign: 1},
		{Name: 9, Type: uint32(elf.SHT_DYNAMIC), Flags: uint64(elf.SHF_ALLOC), Addr: dynamicAt, Off: dynamicAt, Size: dynamicLength, Link: 1, Addralign: 8, Entsize: dynamicSize},
		{Name: 18, Type: uint32(elf.SHT_STRTAB), Off: sectionNamesAt, Size: uint64(len(sectionNames)), Addralign: 1},
	})
	return out.Bytes()
}
