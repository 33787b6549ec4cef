-- Pandoc writes no alt text to Typst and knows nothing of titles and pages: these blocks are written here.

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
  local caption = pandoc.write(pandoc.Pandoc(block.caption.long), 'typst')
  caption = caption:match('%S') and '[' .. caption:gsub('%s+$', '') .. ']' or 'none'
  local alt = pandoc.utils.stringify(image.caption)
  return pandoc.RawBlock('typst', string.format('#picture(%s, alt: %s, width: %s, %s)', literal(image.src), literal(alt), width(image), caption))
end

local function div(block)
  local open, close = '', ''
  if block.classes:includes('title') then return wrapped('#title-block(authors: authors)[', block.content, ']\n#contents') end
  if block.classes:includes('landscape') then open, close = '#page(flipped: true)[', ']' end
  local scale = block.attributes.scale
  if scale then open, close = open .. '#[#show table: set text(size: ' .. scale .. 'em)', ']' .. close end
  if open ~= '' then return wrapped(open, block.content, close) end
  return block.content
end

local function inline(image)
  local alt = pandoc.utils.stringify(image.caption)
  return pandoc.RawInline('typst', string.format('#box(image(%s, alt: %s, width: %s))', literal(image.src), literal(alt), width(image)))
end

return { { Figure = figure }, { Div = div, Image = inline } }
