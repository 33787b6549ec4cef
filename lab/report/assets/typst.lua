-- Pandoc writes no alt text to Typst, knows nothing of titles and pages, and leaves some of Typst's shorthands in text.

local function literal(text)
  return '"' .. text:gsub('\\', '\\\\'):gsub('"', '\\"'):gsub('\n', ' ') .. '"'
end

local function width(image)
  local given = image.attributes.width or ''
  local pixels = given:match('^([%d.]+)p?x?$')
  if pixels then return (tonumber(pixels) * 0.75) .. 'pt' end
  return given:match('^[%d.]+%%$') or 'auto'
end

local function wrapped(before, blocks, after)
  local list = pandoc.List({ pandoc.RawBlock('typst', before) })
  list:extend(blocks)
  list:insert(pandoc.RawBlock('typst', after))
  return list
end

local function figure(block)
  local image = nil
  pandoc.Div(block.content):walk({ Image = function(found) image = image or found end })
  if not image then return nil end
  local caption = pandoc.write(pandoc.Pandoc(block.caption.long), 'typst', pandoc.WriterOptions({ wrap_text = 'none' }))
  caption = caption:match('%S') and '[' .. caption:gsub('%s+$', '') .. ']' or 'none'
  local alt = image.attributes.described or ''
  local label = block.identifier ~= '' and ' <' .. block.identifier .. '>' or ''
  return pandoc.RawBlock('typst', string.format('#picture(%s, alt: %s, width: %s, floats: %s, %s)%s', literal(image.src), literal(alt), width(image), block.classes:includes('numbered'), caption, label))
end

local function div(block)
  if block.classes:includes('lab-title') then return wrapped('#title-block(byline: byline)[', block.content, ']') end
  if block.classes:includes('lab-contents') then return pandoc.RawBlock('typst', '#contents()') end
  if block.classes:includes('lab-flush') then return pandoc.RawBlock('typst', '#place.flush()') end
  return block.content
end

-- pandoc centres a table and lets its columns take what they like.
local function fitted(block)
  local source = pandoc.write(pandoc.Pandoc(block), 'typst', pandoc.WriterOptions({ wrap_text = 'none' }))
  return pandoc.RawBlock('typst', (source:gsub('align%(center%)%[#table%(', '[#fitted(')))
end

local function is_formula(block)
  local only = block and block.t == 'Para' and #block.content == 1 and block.content[1]
  return only and only.t == 'Math' and only.mathtype == 'DisplayMath'
end

-- A formula stays on the page of the sentence that it ends, and the first item of a list on that of the sentence before its colon.
local function introduces(block, following)
  if not (block.t == 'Para' and following) or is_formula(block) then return false end
  return is_formula(following) or following.t == 'BulletList' and pandoc.utils.stringify(block):match(':$')
end

local function blocks(list)
  local kept = pandoc.List()
  for place, block in ipairs(list) do
    if introduces(block, list[place + 1]) then
      kept:extend(wrapped('#block(sticky: true)[', { block }, ']'))
    else
      kept:insert(block)
    end
  end
  return kept
end

local function inline(image)
  return pandoc.RawInline('typst', string.format('#box(image(%s, alt: %s, width: %s))', literal(image.src), literal(image.attributes.described or ''), width(image)))
end

-- `...`, `-?` and a hyphen before a digit would become an ellipsis, a soft hyphen and a minus.
local function text(str)
  local pieces, plain = pandoc.List(), ''
  for place, letter in utf8.codes(str.text) do
    letter = utf8.char(letter)
    local rest = str.text:sub(place)
    if rest:match('^%.%.') or rest:match('^%-[%d?]') then
      if plain ~= '' then pieces:insert(pandoc.Str(plain)) end
      pieces:insert(pandoc.RawInline('typst', '\\' .. letter))
      plain = ''
    else
      plain = plain .. letter
    end
  end
  if #pieces == 0 then return nil end
  if plain ~= '' then pieces:insert(pandoc.Str(plain)) end
  return pieces
end

return { { Str = text }, { Figure = figure }, { Div = div, Image = inline }, { Table = fitted, Blocks = blocks } }
